"""Small questions to the cluster's processes over HTTP or a socket."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request
from typing import Any

from tools.cluster import certificates
from tools.cluster.layout import API_URL

TIMEOUT_SECONDS = 3.0
_ERRORS = (OSError, http.client.HTTPException, ValueError)
# Never through a proxy: every address is one of this machine's own.
_DIRECT = urllib.request.ProxyHandler({})


def fault(target: str) -> str | None:
    """Say why a target does not serve; None when it does.

    Args:
        target: ``http://`` or ``https://`` URL that must answer 200, or the path of a UNIX socket that must accept.
    """
    try:
        if target.startswith("/"):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(TIMEOUT_SECONDS)
                client.connect(target)
            return None
        with _open(target):
            return None
    except urllib.error.HTTPError as error:
        return f"{target} answers {error.code}"
    except _ERRORS as error:
        return f"{target}: {getattr(error, 'reason', None) or str(error) or type(error).__name__}"


def get(path: str) -> dict[str, Any]:
    """Read one object from our API server as the admin.

    Args:
        path: For instance ``/api/v1/nodes/epd-local``.

    Returns:
        The object; empty when it does not exist or the server does not answer.
    """
    try:
        with _open(API_URL + path) as answer:
            document: dict[str, Any] = json.load(answer)
            return document
    except _ERRORS:
        return {}


def _open(url: str) -> http.client.HTTPResponse:
    handlers: list[urllib.request.BaseHandler] = [_DIRECT]
    if url.startswith("https:"):
        context = ssl.create_default_context(cafile=str(certificates.certificate("ca")))
        context.load_cert_chain(certificates.certificate("admin"), certificates.key("admin"))
        handlers.append(urllib.request.HTTPSHandler(context=context))
    answer: http.client.HTTPResponse = urllib.request.build_opener(*handlers).open(url, timeout=TIMEOUT_SECONDS)
    return answer

"""Where the API server is and how to authenticate to it."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class AccessError(Exception):
    """No usable credentials for the API server."""


@dataclass(frozen=True)
class Access:
    """How to reach the API server.

    Attributes:
        server: Base address without a trailing slash.
        tls: Context for the connection, None for plain http.
        headers: The current credentials; called for every request, since tokens are renewed under our feet.
    """

    server: str
    tls: ssl.SSLContext | None
    headers: Callable[[], dict[str, str]]


def access() -> Access:
    """Credentials from $KUBECONFIG if set, else those that a pod is given.

    Raises:
        AccessError: Neither is there.
    """
    return _kubeconfig() if os.environ.get("KUBECONFIG") else in_cluster()


def in_cluster(mount: Path = _MOUNT) -> Access:
    """The pod's own service account.

    Read from the mounted files directly: the client library's version of these lines costs 25 MB of memory.

    Args:
        mount: Folder with ``token`` and ``ca.crt``.

    Raises:
        AccessError: Not in a pod, or no token is mounted.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = mount / "token"
    if not host or not token.is_file():
        raise AccessError(
            f"no access to the API server: KUBERNETES_SERVICE_HOST or {token} is missing; "
            "mount a service account token in this container, or set KUBECONFIG"
        )
    host = f"[{host}]" if ":" in host else host

    def headers() -> dict[str, str]:
        return {"Authorization": f"Bearer {token.read_text(encoding='ascii').strip()}"}

    return Access(f"https://{host}:{port}", ssl.create_default_context(cafile=str(mount / "ca.crt")), headers)


def _kubeconfig() -> Access:
    """A kubeconfig, exec plugins included."""
    from kubernetes import client, config  # noqa: PLC0415 - heavy, and not needed in a pod

    settings = client.Configuration()
    try:
        config.load_kube_config(os.environ["KUBECONFIG"], client_configuration=settings)
    except config.ConfigException as error:
        raise AccessError(f"KUBECONFIG={os.environ['KUBECONFIG']}: {error}") from error
    tls: ssl.SSLContext | None = None
    if settings.host.startswith("https"):
        tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if not settings.verify_ssl:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        if settings.cert_file:
            tls.load_cert_chain(settings.cert_file, settings.key_file)

    def headers() -> dict[str, str]:
        token = settings.get_api_key_with_prefix("BearerToken", alias="authorization")
        return {"Authorization": token} if token else {}

    return Access(settings.host.rstrip("/"), tls, headers)

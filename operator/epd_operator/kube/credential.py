"""Who we are to the API server: read by the official client package, used by our own transport.

The official package knows every way to log in (service accounts, client certificates, exec plugins, tokens in files);
its transport is too slow and its models too heavy for an operator. So it fills a `Configuration`, and this module turns
that into a TLS context and an `Authorization` header.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable

REFRESH_SECONDS: Final = 30.0
"""How old a header may be before its source is asked again: tokens rotate on disk well before they expire."""

REFUSED_SECONDS: Final = 1.0
"""Shortest pause between two readings of refused credentials."""

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class CredentialError(Exception):
    """No usable configuration was found."""


@dataclass(frozen=True)
class Server:
    """Where the API server is and how its certificate is checked.

    Attributes:
        url: Scheme, host and port, without a trailing slash.
        tls: None for plain http.
        tls_name: Name expected in the certificate when it is not the host's.
        proxy: Proxy address, or None.
        fingerprint: Changes when anything above does, the contents of certificate files included.
    """

    url: str
    tls: ssl.SSLContext | None
    tls_name: str | None
    proxy: str | None
    fingerprint: str


class Credential:
    """The current identity; knows how to read itself again.

    Args:
        load: Returns a filled `kubernetes.client.Configuration`; may block (files, exec plugins).
        clock: Monotonic seconds.
    """

    def __init__(self, load: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._load = load
        self._clock = clock
        self._lock = asyncio.Lock()
        self._configuration: Any = None
        self._header: str | None = None
        self._read_at = float("-inf")

    async def server(self) -> Server:
        """Address and TLS context of the configuration in use.

        Raises:
            CredentialError: Nothing usable is configured.
        """
        if self._configuration is None:
            await self.reload()
        return await asyncio.to_thread(_server, self._configuration)

    async def header(self) -> str | None:
        """Value of the `Authorization` header, at most `REFRESH_SECONDS` old; None with client certificates."""
        if self._configuration is None:
            await self.reload()
        elif self._clock() - self._read_at > REFRESH_SECONDS:
            async with self._lock:
                if self._clock() - self._read_at > REFRESH_SECONDS:
                    await self._read_header()
        return self._header

    async def reload(self) -> None:
        """Read everything again: new token, new certificate, new plugin output."""
        async with self._lock:
            await self._read_all()

    async def replaced(self, used: str | None) -> bool:
        """After a 401 to a request with this header: whether there is a different one to try with.

        Many requests fail at once when a token expires; the first of them reads everything again, the others find
        that done.
        """
        async with self._lock:
            if self._header == used and self._clock() - self._read_at > REFUSED_SECONDS:
                await self._read_all()
            return self._header != used

    async def _read_all(self) -> None:
        self._configuration = await asyncio.to_thread(self._load)
        await self._read_header()

    async def _read_header(self) -> None:
        # The package's hook re-reads token files and re-runs exec plugins, so it must not run on the event loop.
        self._header = await asyncio.to_thread(self._configuration.get_api_key_with_prefix, "BearerToken")
        self._read_at = self._clock()


def load_configuration(kubeconfig: str | None = None, context: str | None = None) -> Any:
    """A filled `kubernetes.client.Configuration`: service account inside a pod, kubeconfig elsewhere.

    Args:
        kubeconfig: File to read instead of `$KUBECONFIG` or `~/.kube/config`.
        context: Context to use instead of the current one.

    Raises:
        CredentialError: Neither is there, or what is there cannot be read.
    """
    from kubernetes import client, config  # noqa: PLC0415 - 0.2 s that `epd version` and `epd crd` do without

    configuration = client.Configuration()
    loader: Any = config  # its functions are untyped
    try:
        if kubeconfig is None and context is None and (SERVICE_ACCOUNT / "token").is_file():
            loader.load_incluster_config(client_configuration=configuration)
        else:
            loader.load_kube_config(config_file=kubeconfig, context=context, client_configuration=configuration)
    # The loader does not check a file's shape: it fails on what it finds.
    except (config.ConfigException, OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise CredentialError(
            f"no access to a cluster: {reason}. Set KUBECONFIG (or --kubeconfig) to a readable file "
            "with a current context, or run inside a pod whose service account token is mounted."
        ) from error
    return configuration


def _server(configuration: Any) -> Server:
    url = str(configuration.host).rstrip("/")
    tls: ssl.SSLContext | None = None
    if url.startswith("https:"):
        tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            tls.load_cert_chain(configuration.cert_file, configuration.key_file)
        if not configuration.verify_ssl:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
    name, proxy = configuration.tls_server_name, configuration.proxy
    digest = hashlib.sha256(repr((url, name, proxy, configuration.verify_ssl)).encode())
    for path in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file):
        digest.update(Path(path).read_bytes() if path and tls else b"")
    return Server(url, tls, name, proxy, digest.hexdigest())

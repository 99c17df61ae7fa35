"""The two ports that Kubernetes and Prometheus look at."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

Check = Callable[[], Sequence[str]]
"""Returns what is wrong, one line each; nothing means well."""


class Server:
    """One HTTP server with GET handlers.

    Args:
        port: Port to listen on; 0 picks a free one.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._app = web.Application()
        self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=1.0)

    def check(self, path: str, check: Check) -> None:
        """Answer `path` with 200, or with 503 and the faults."""

        async def answer(_: web.Request) -> web.Response:
            faults = check()
            return web.Response(text="\n".join(faults) or "ok", status=503 if faults else 200)

        self._app.router.add_get(path, answer)

    def metrics(self, registry: CollectorRegistry) -> None:
        """Answer `/metrics`."""

        async def answer(_: web.Request) -> web.Response:
            return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

        self._app.router.add_get("/metrics", answer)

    async def start(self) -> int:
        """Listen on every address; returns the port."""
        await self._runner.setup()
        listener = _listener(self._port)
        await web.SockSite(self._runner, listener).start()
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()


def _listener(port: int) -> socket.socket:
    # One socket for both families, so that one port number holds for IPv4 and IPv6 pods alike.
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # IPv6 is compiled in but switched off
                raise
    return socket.create_server(("", port))

"""What the registrar serves: its state, its health and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from epd_workers.registrar.state import document, tally

if TYPE_CHECKING:
    from epd_workers.registrar.loop import Loop
    from epd_workers.registrar.metrics import Metrics
    from epd_workers.registrar.probe import Probe
    from epd_workers.registrar.state import View
    from epd_workers.registrar.survey import Survey


class Server:
    """The read-only HTTP endpoints.

    Args:
        loop: The membership loop.
        survey: What the pods report.
        probe: Which pods do not compute.
        metrics: The process's metrics.
        pod: Name of this router pod.
        version: The router program's name and version.
        engine_port: Port of the engines' HTTP servers.
    """

    def __init__(
        self,
        loop: Loop,
        survey: Survey,
        probe: Probe,
        metrics: Metrics,
        *,
        pod: str,
        version: str,
        engine_port: int,
    ) -> None:
        self._loop = loop
        self._survey = survey
        self._probe = probe
        self._metrics = metrics
        self._pod = pod
        self._version = version
        self._engine_port = engine_port

    def application(self) -> web.Application:
        """Routes: /state, /healthz, /readyz, /metrics."""
        app = web.Application()
        app.router.add_get("/state", self._state)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._prometheus)
        return app

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response(self._document(await self._loop.fresh()))

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._loop.ready:
            return web.Response(text="ok\n")
        missing = "the first sync is not over" if self._loop.view.router_ready else "the router does not answer"
        return web.Response(status=503, text=f"{missing}\n")

    async def _prometheus(self, _: web.Request) -> web.Response:
        view = self._loop.view
        self._metrics.observe(tally(self._document(view), view))
        return web.Response(body=self._metrics.text(), content_type="text/plain", charset="utf-8")

    def _document(self, view: View) -> dict[str, Any]:
        return document(
            view,
            pod=self._pod,
            version=self._version,
            engine_port=self._engine_port,
            reports=self._survey.known,
            plugins=self._survey.plugins,
            failing=self._probe.failing,
        )

"""What a supervisor answers: whether its server serves, and its figures."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from epd_workers.swapool.server.program import Figures, Health

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from epd_workers.swapool.server.program import Program

# Kubelets that ask must have an answer before they give up.
PATIENCE: Final = 2.0
GAUGES: Final = {
    "capacity": ("swapool_server_capacity_bytes", "Bytes that it may hold."),
    "used": ("swapool_server_used_bytes", "Bytes that it holds."),
    "windows": ("swapool_server_windows", "Windows that it holds."),
    "stores": ("swapool_server_stores", "Stores that it knows of."),
}
COUNTERS: Final = {
    "evicted": ("swapool_server_evicted", "Windows dropped for want of room."),
    "expired": ("swapool_server_expired", "Windows dropped at the end of their time."),
    "refused": ("swapool_server_refused", "Windows that it had no room for."),
}


class Status:
    """The HTTP endpoints of a supervisor.

    Args:
        program: What runs.
        patience: Seconds that it has to prove that it serves.
    """

    def __init__(self, program: Program, patience: float = PATIENCE) -> None:
        self._program = program
        self._patience = patience
        self._asking: asyncio.Task[Health] | None = None

    def application(self) -> web.Application:
        """Routes: /health, /live, /metrics."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/live", self._live)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def health(self) -> Health:
        """Return whether the server serves at this moment. Callers that ask meanwhile share the answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Health:
        try:
            return await asyncio.wait_for(self._program.health(), self._patience)
        except TimeoutError:
            return Health.broken(f"{self._program.name}: no answer within {self._patience:g} s")
        except OSError as error:
            return Health.broken(f"{self._program.name}: {error}")

    async def _health(self, _: web.Request) -> web.Response:
        health = await self.health()
        return web.Response(status=503 if health.fault else 200, text=f"{health.fault or 'ok'}\n")

    async def _live(self, _: web.Request) -> web.Response:
        health = await self.health()
        return web.Response(status=200 if health.alive else 503, text=f"{health.fault or 'ok'}\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        health = await self.health()
        figures = Figures()
        if health.alive:
            try:
                figures = await asyncio.wait_for(self._program.figures(), self._patience)
            except Exception as error:  # noqa: BLE001 - without an answer there are no figures
                health = Health.broken(f"{self._program.name}: {error}")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Exposition(self._program.name, figures, serves=not health.fault))
        return web.Response(body=generate_latest(registry), content_type="text/plain", charset="utf-8")


class _Exposition:
    def __init__(self, server: str, figures: Figures, *, serves: bool) -> None:
        self._server = server
        self._figures = asdict(figures)
        self._serves = serves

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("swapool_server_up", "1 while the server serves.", labels=["server"])
        up.add_metric([self._server], float(self._serves))
        yield up
        for family, names in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, (metric, text) in names.items():
                if (value := self._figures[name]) is not None:
                    reported = family(metric, text, labels=["server"])
                    reported.add_metric([self._server], float(value))
                    yield reported

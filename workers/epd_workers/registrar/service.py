"""All parts of the registrar, put together and running."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from epd_workers.registrar.access import access
from epd_workers.registrar.directory import Directory
from epd_workers.registrar.loop import Loop
from epd_workers.registrar.metrics import Metrics
from epd_workers.registrar.probe import Probe
from epd_workers.registrar.router import Router
from epd_workers.registrar.server import Server
from epd_workers.registrar.survey import Survey
from epd_workers.registrar.watch import PodWatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(frozen=True)
class RegistrarSettings:
    """The registrar's configuration.

    Attributes:
        namespace: Where the engine pods are.
        selector: Label selector of the engine pods.
        router: Address of the router.
        control_key: Key for the router's worker endpoints.
        engine_port: Port of the engines' HTTP servers.
        encoder_port: Port of the prefills' encoder directories.
        listen: Host and port to serve on.
        resync: Seconds between passes at rest.
        relist: Seconds between lists of the pods.
        pod: Name of this router pod.
        version: The router program's name and version.
    """

    namespace: str
    selector: str
    router: str
    control_key: str
    engine_port: int
    encoder_port: int
    listen: tuple[str, int]
    resync: float
    relist: float
    pod: str
    version: str


@contextlib.asynccontextmanager
async def run(settings: RegistrarSettings) -> AsyncIterator[None]:
    """The running registrar; a part that fails unexpectedly ends the whole, so that the pod's restart heals it.

    Raises:
        AccessError: No credentials for the API server.
    """
    async with aiohttp.ClientSession() as session:
        metrics = Metrics()
        wake = asyncio.Event()
        watch = PodWatch(
            session,
            access(),
            settings.namespace,
            settings.selector,
            engine_port=settings.engine_port,
            resync=settings.relist,
            changed=wake.set,
            failed=lambda: metrics.error("kubernetes"),
        )
        metrics.pods_seen.set_function(lambda: watch.contact)
        router = Router(
            session,
            settings.router,
            settings.control_key,
            engine_port=settings.engine_port,
        )
        directory = Directory(session, settings.encoder_port)
        probe = Probe(session, watch, metrics, engine_port=settings.engine_port, changed=wake.set)
        loop = Loop(
            watch,
            router,
            directory,
            metrics,
            wake,
            engine_port=settings.engine_port,
            resync=settings.resync,
            failing=lambda: probe.failing,
        )
        survey = Survey(session, watch, metrics, engine_port=settings.engine_port)
        server = Server(
            loop,
            survey,
            probe,
            metrics,
            pod=settings.pod,
            version=settings.version,
            engine_port=settings.engine_port,
        )
        runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, *settings.listen).start()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(part.run()) for part in (watch, loop, survey, probe)]
                yield
                for task in tasks:
                    task.cancel()
        finally:
            await runner.cleanup()

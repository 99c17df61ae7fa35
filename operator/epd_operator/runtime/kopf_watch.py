"""Kopf's watch streams and log-in; the only module that imports it.

No index, timer, daemon, change handler, finalizer, peering, webhook, event posting or resource scanning is used, so
kopf writes nothing, and needs no permission beyond list and watch on what is named here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

import kopf
from typing_extensions import override

from epd_operator.runtime.watch_scope import WATCHED, WatchScope, selector

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from epd_operator.kube import Connection
    from epd_operator.kube.kind import Kind
    from epd_operator.runtime.intake import Intake


class NoEssence(kopf.DiffBaseStorage):
    """Spares kopf the copy and comparison of every object of every event, which only its change handlers look at.

    That is two thirds of the time that an event takes.
    """

    @override
    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        """Nothing of the object."""
        return cast("kopf.BodyEssence", {})

    @override
    def fetch(self, *, body: kopf.Body) -> None:
        """Nothing was stored."""

    @override
    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is stored."""


def settings() -> kopf.OperatorSettings:
    """Kopf's settings; why each one: it must not write, not scan, and notice a dead stream."""
    result = kopf.OperatorSettings()
    result.posting.enabled = False
    result.peering.standalone = True
    result.scanning.disabled = True  # no reads of CRDs or namespaces, in either scope
    result.watching.chunk_size = 500
    result.watching.server_timeout = 300
    result.watching.client_timeout = 330
    result.watching.inactivity_timeout = 70
    result.networking.request_timeout = 30
    result.networking.connect_timeout = 5
    result.networking.error_backoffs = (0.5, 1, 2, 4, 8)
    result.persistence.diffbase_storage = NoEssence()
    result.process.ultimate_exiting_timeout = None  # we end the process ourselves
    for kind in WATCHED:
        labels = selector(kind)
        if labels:
            result.watching.label_selectors[kind.group, kind.version, kind.plural] = labels
    return result


def registry(connection: Connection, intake: Intake, seen: Callable[[Kind, str], None]) -> kopf.OperatorRegistry:
    """Handlers for the custom resource, every owned kind and pods; each only takes note.

    Args:
        connection: The shared session; renewed when kopf found its credentials refused.
        intake: Takes the news.
        seen: Called with kind and namespace of every event that was handled.
    """
    result = kopf.OperatorRegistry()
    logins = 0

    async def login(**_: Any) -> kopf.AiohttpSession:
        nonlocal logins
        logins += 1
        if logins > 1:
            await connection.renew()
        url, session = await connection.open()
        return kopf.AiohttpSession(server=url, aiohttp_session=session)

    kopf.on.login(registry=result)(login)
    for kind in WATCHED:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=result, id=kind.resource)(
            _handler(kind, intake, seen)
        )
    return result


def _handler(kind: Kind, intake: Intake, seen: Callable[[Kind, str], None]) -> Callable[..., Awaitable[None]]:
    async def note(event: Any, **_: Any) -> None:
        obj = event["object"]
        if event["type"] == "DELETED":
            intake.lost(kind, obj)
        else:
            intake.saw(kind, obj)
        seen(kind, obj["metadata"].get("namespace", ""))

    return note


class HandlerFailures(logging.Handler):
    """Notices events that kopf could not handle, from its log: kopf only logs them and goes on with the next.

    Args:
        report: Called with the message of each.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._report = report

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Pass the message on."""
        self._report(record.getMessage())


class KopfWatches:
    """Kopf, running inside our event loop.

    Args:
        handlers: See `registry`.
        scope: What is watched.
        handler_failed: Called with the message of every event that could not be handled.
    """

    def __init__(
        self, handlers: kopf.OperatorRegistry, scope: WatchScope, handler_failed: Callable[[str], None]
    ) -> None:
        self._handlers = handlers
        self._scope = scope
        self._failures = HandlerFailures(handler_failed)
        self._stop = asyncio.Event()
        self._run: asyncio.Task[None] | None = None

    async def start(self) -> asyncio.Task[None]:
        """Spawn kopf's tasks; the returned task ends when kopf does.

        Kopf installs its own signal handlers here; put yours back afterwards.
        """
        logging.getLogger("kopf.objects").addHandler(self._failures)
        before = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=self._handlers,
            settings=settings(),
            clusterwide=not self._scope.namespaces,
            namespaces=self._scope.namespaces,
            stop_flag=self._stop,
        )
        self._run = asyncio.create_task(kopf.run_tasks(tasks, ignored=before), name="kopf")
        return self._run

    async def stop(self, seconds: float) -> None:
        """End kopf, waiting at most so many seconds."""
        if self._run is None:
            return
        self._stop.set()
        logging.getLogger("kopf").setLevel(logging.CRITICAL)  # its streams end with errors, now that they may
        await asyncio.wait({self._run}, timeout=seconds)
        logging.getLogger("kopf.objects").removeHandler(self._failures)

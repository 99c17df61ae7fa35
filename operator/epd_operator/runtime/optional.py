"""Kinds that a cluster may lack: watched by ourselves, as soon as they are there.

The tricky idea: kopf looks once for what it is to watch, and what it does not find then it never watches. These kinds
come with an add-on that may be installed long after the operator. So each has a loop of its own, which lists it,
watches it until the stream ends, and lists it again; while the API server does not know the kind, it asks every
quarter of a minute.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from epd_operator.kube import ApiError, Cluster, NotFound
from epd_operator.runtime.watch_scope import OPTIONAL, WatchScope, selector

if TYPE_CHECKING:
    from epd_operator.kube.kind import Kind
    from epd_operator.runtime.intake import Intake
    from epd_operator.runtime.liveness import Liveness

log = logging.getLogger(__name__)

ABSENT_SECONDS: Final = 15.0
RETRY_SECONDS: Final = 1.0


class OptionalWatch:
    """Keeps the cache true for the kinds of `watch_scope.OPTIONAL`.

    Args:
        cluster: The API server.
        intake: Takes lists and events.
        liveness: Takes every sign of life.
        scope: Namespaces to watch.
    """

    def __init__(self, cluster: Cluster, intake: Intake, liveness: Liveness, scope: WatchScope) -> None:
        self._cluster = cluster
        self._intake = intake
        self._liveness = liveness
        self._places = tuple((kind, namespace) for kind in OPTIONAL for namespace in scope.lists)
        self._unanswered = set(self._places)
        self._absent: set[tuple[Kind, str | None]] = set()
        self.ready = asyncio.Event()
        """Set once the API server has listed, or disowned, each of them."""

    def streams(self) -> list[str]:
        """Names of the watches, for `Liveness`."""
        return [_name(kind, namespace) for kind, namespace in self._places]

    async def run(self) -> None:
        """Watch all of them; never returns."""
        async with asyncio.TaskGroup() as group:
            for kind, namespace in self._places:
                group.create_task(self._follow(kind, namespace), name=f"watch of {_name(kind, namespace)}")

    async def _follow(self, kind: Kind, namespace: str | None) -> None:
        while True:
            try:
                await self._once(kind, namespace)
            except NotFound:
                if (kind, namespace) not in self._absent:
                    log.info("not served by this cluster", extra={"kind": kind.resource})
                self._absent.add((kind, namespace))
                self._intake.disowned(kind, namespace)
                self._answered(kind, namespace)
                await asyncio.sleep(ABSENT_SECONDS)
            except ApiError as error:
                log.warning("watch ended", extra={"kind": kind.resource, "error": str(error)})
                await asyncio.sleep(RETRY_SECONDS)

    async def _once(self, kind: Kind, namespace: str | None) -> None:
        """One list and one stream after it."""
        items, version = await self._cluster.list(kind, namespace, selector(kind))
        self._intake.listed(kind, namespace, items, version)
        if (kind, namespace) in self._absent:
            log.info("served by this cluster now", extra={"kind": kind.resource})
            self._absent.discard((kind, namespace))
            self._intake.all()  # what could not be applied for want of the kind can be now
        self._answered(kind, namespace)
        async for event, obj in self._cluster.watch(kind, namespace, selector=selector(kind), version=version):
            if event == "DELETED":
                self._intake.lost(kind, obj)
            elif event != "BOOKMARK":
                self._intake.saw(kind, obj)
            self._liveness.seen(_name(kind, namespace))

    def _answered(self, kind: Kind, namespace: str | None) -> None:
        self._liveness.seen(_name(kind, namespace))
        self._unanswered.discard((kind, namespace))
        if not self._unanswered:
            self.ready.set()


def _name(kind: Kind, namespace: str | None) -> str:
    return f"{kind.resource}@{namespace}" if namespace else kind.resource

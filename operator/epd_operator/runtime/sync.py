"""Complete lists: before the first reconciliation, after every list that kopf makes, and every ten minutes.

The tricky idea: kopf tells its handlers what it sees, never what it no longer sees. After a broken watch it lists
again, and objects deleted in between just do not appear. So whenever kopf has begun a list, we list the same
collection once more, at the same or a later resourceVersion: what is missing in ours is gone for good. The very first
such round is the barrier that the workers wait for.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from epd_operator.kube import ApiError, Cluster
from epd_operator.runtime.watch_scope import WATCHED, WatchScope, selector

if TYPE_CHECKING:
    from epd_operator.kube.kind import Kind
    from epd_operator.runtime.intake import Intake
    from epd_operator.runtime.liveness import Liveness

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class Sync:
    """Keeps the cache complete.

    Args:
        cluster: The API server.
        intake: Takes the lists.
        liveness: Takes the signs of life of kopf's streams.
        scope: Namespaces to watch.
        every: Seconds between two complete rounds; 10 % of jitter is added.
    """

    def __init__(self, cluster: Cluster, intake: Intake, liveness: Liveness, scope: WatchScope, every: float) -> None:
        self._cluster = cluster
        self._intake = intake
        self._liveness = liveness
        self._every = every
        self._paths = {kind.path(namespace): (kind, namespace) for kind in WATCHED for namespace in scope.lists}
        self._missing = set(self._paths.values())
        self._wanted: asyncio.Queue[tuple[Kind, str | None]] = asyncio.Queue()
        self._queued: set[tuple[Kind, str | None]] = set()
        self.ready = asyncio.Event()
        """Set once every collection has been listed."""

    def streams(self) -> list[str]:
        """Names of the watches, for `Liveness`."""
        return [_name(kind, namespace) for kind, namespace in self._paths.values()]

    def event_handled(self, kind: Kind, namespace: str) -> None:
        """An event from the watch on `kind` was handled."""
        self._liveness.handled()
        place = (kind, namespace) if (kind, namespace) in self._paths.values() else (kind, None)
        self._liveness.seen(_name(*place))

    def answered(self, path: str, watch: bool) -> None:
        """Kopf's list or watch of `path` was answered."""
        place = self._paths.get(path)
        if place is None:
            return
        self._liveness.seen(_name(*place))
        if not watch:
            self._want(place)

    async def run(self) -> None:
        """List what is wanted, one collection at a time; never returns."""
        while True:
            place = await self._wanted.get()
            self._queued.discard(place)
            kind, namespace = place
            try:
                items, version = await self._cluster.list(kind, namespace, selector(kind))
            except ApiError as error:
                log.warning("list failed", extra={"kind": kind.resource, "error": str(error)})
                await asyncio.sleep(RETRY_SECONDS)
                self._want(place)
                continue
            self._intake.listed(kind, namespace, items, version)
            self._missing.discard(place)
            if not self._missing and not self.ready.is_set():
                self.ready.set()

    async def resync(self) -> None:
        """Every ten minutes or so: list everything and reconcile everything."""
        while True:
            await asyncio.sleep(self._every * random.uniform(1.0, 1.1))  # noqa: S311 - jitter
            for place in self._paths.values():
                self._want(place)
            self._intake.all()

    def _want(self, place: tuple[Kind, str | None]) -> None:
        if place not in self._queued:
            self._queued.add(place)
            self._wanted.put_nowait(place)


def _name(kind: Kind, namespace: str | None) -> str:
    return f"{kind.resource}@{namespace}" if namespace else kind.resource

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from epd_operator.kube import NotFound, Transport
from epd_operator.kube.kind import LEADER_WORKER_SET, Kind
from epd_operator.runtime.cache import Cache
from epd_operator.runtime.intake import Intake
from epd_operator.runtime.liveness import WATCH_BOUND, Liveness
from epd_operator.runtime.optional import ABSENT_SECONDS, OptionalWatch
from epd_operator.runtime.queue import WorkQueue
from epd_operator.runtime.watch_scope import CUSTOM, Key, WatchScope

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.virtual_time import Virtual

KEY = Key("ns", "demo")
NAME = LEADER_WORKER_SET.resource


def group(name: str, version: int) -> dict[str, Any]:
    owner = {"apiVersion": "serving.epd.dev/v1alpha1", "kind": "DeepSeekV41Deployment", "controller": True}
    owners = [{**owner, "name": "demo", "uid": "u"}]
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version), "ownerReferences": owners}}


class Server:
    """An API server that knows the kind or does not, and sends what it is told to."""

    def __init__(self, *, served: bool) -> None:
        self.served = served
        self.broken = 0
        self.items: list[dict[str, Any]] = []
        self.events: asyncio.Queue[tuple[str, dict[str, Any]] | None] = asyncio.Queue()
        self.lists: list[float] = []
        self.watched: list[tuple[str, str]] = []

    async def list(self, kind: Kind, namespace: str | None, selector: str) -> tuple[list[dict[str, Any]], str]:
        assert (kind, namespace) == (LEADER_WORKER_SET, None)
        assert selector == "app.kubernetes.io/managed-by=epd-operator"
        self.lists.append(asyncio.get_running_loop().time())
        if self.broken:
            self.broken -= 1
            raise Transport("LIST", "reset")
        if not self.served:
            raise NotFound("LIST", "404 page not found", status=404)
        return self.items, "50"

    async def watch(
        self, _kind: Kind, _namespace: str | None, *, selector: str, version: str
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        self.watched.append((selector, version))
        while (event := await self.events.get()) is not None:
            yield event


def build(*, served: bool) -> tuple[OptionalWatch, Server, Cache, WorkQueue[Key], Liveness]:
    cache, queue, server = Cache(), WorkQueue[Key](), Server(served=served)
    liveness = Liveness(asyncio.get_running_loop().time)
    watch = OptionalWatch(server, Intake(cache, queue), liveness, WatchScope())  # type: ignore[arg-type]  # reads only
    liveness.expect(watch.streams())
    return watch, server, cache, queue, liveness


def test_a_cluster_without_the_kind_holds_nothing_up(virtual: Virtual) -> None:
    async def main() -> None:
        watch, server, cache, _, liveness = build(served=False)
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(1)
        assert watch.ready.is_set()
        await asyncio.sleep(10 * ABSENT_SECONDS)
        assert len(server.lists) == 11
        assert len(cache) == 0
        assert liveness.faults("lease") == []
        running.cancel()

    virtual(main())


def test_a_kind_installed_later_is_taken_up_and_everything_is_looked_at_anew(virtual: Virtual) -> None:
    async def main() -> None:
        watch, server, cache, queue, _ = build(served=False)
        cache.put(CUSTOM, {"metadata": {"name": "demo", "namespace": "ns", "uid": "u", "resourceVersion": "1"}})
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(1)
        server.served = True
        await asyncio.sleep(ABSENT_SECONDS)
        assert await queue.get() == KEY
        assert server.watched == [("app.kubernetes.io/managed-by=epd-operator", "50")]
        running.cancel()

    virtual(main())


def test_lists_and_events_reach_the_cache_and_wake_their_owner(virtual: Virtual) -> None:
    async def main() -> None:
        watch, server, cache, queue, _ = build(served=True)
        server.items = [group("listed", 2)]
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(5)
        assert watch.ready.is_set()
        assert cache.get(LEADER_WORKER_SET, "ns", "listed")
        assert await queue.get() == KEY
        queue.done(KEY)
        await server.events.put(("BOOKMARK", {"metadata": {"resourceVersion": "60"}}))
        await server.events.put(("ADDED", group("added", 61)))
        await server.events.put(("DELETED", group("listed", 62)))
        await asyncio.sleep(5)
        assert [child["metadata"]["name"] for child in cache.children("u")] == ["added"]
        assert await queue.get() == KEY
        running.cancel()

    virtual(main())


def test_a_stream_that_ends_is_opened_anew_and_what_vanished_meanwhile_is_noticed(virtual: Virtual) -> None:
    async def main() -> None:
        watch, server, cache, _, liveness = build(served=True)
        server.items = [group("old", 2)]
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(1)
        server.items = []
        server.broken = 3
        await server.events.put(None)
        await asyncio.sleep(10)
        assert len(server.lists) == 5
        assert len(server.watched) == 2
        assert len(cache) == 0
        await asyncio.sleep(WATCH_BOUND + 1)
        (fault,) = liveness.faults("lease")
        assert NAME in fault, "a stream that says nothing for so long is dead"
        running.cancel()

    virtual(main())


def test_a_kind_that_is_taken_away_takes_its_objects_along(virtual: Virtual) -> None:
    async def main() -> None:
        watch, server, cache, queue, _ = build(served=True)
        server.items = [group("a", 2)]
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(1)
        assert await queue.get() == KEY
        queue.done(KEY)
        server.served = False
        await server.events.put(None)
        await asyncio.sleep(5)
        assert len(cache) == 0
        assert await queue.get() == KEY
        queue.done(KEY)
        server.served = True
        server.items = [group("a", 3)]
        await asyncio.sleep(2 * ABSENT_SECONDS)
        assert [child["metadata"]["name"] for child in cache.children("u")] == ["a"]
        running.cancel()

    virtual(main())

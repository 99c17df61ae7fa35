from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from epd_operator.kube import Transport
from epd_operator.kube.kind import DEPLOYMENT, POD, Kind
from epd_operator.runtime.cache import Cache
from epd_operator.runtime.intake import Intake
from epd_operator.runtime.liveness import LEASE_BOUND, WATCH_BOUND, Liveness
from epd_operator.runtime.queue import WorkQueue
from epd_operator.runtime.sync import Sync
from epd_operator.runtime.watch_scope import CUSTOM, WATCHED, Key, WatchScope, selector

if TYPE_CHECKING:
    from tests.support.virtual_time import Virtual

KEY = Key("ns", "demo")


def custom(version: int, generation: int = 1, **more: Any) -> dict[str, Any]:
    metadata = {"name": "demo", "namespace": "ns", "uid": "u", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "generation": generation, **more}}


def child(name: str, version: int, owner: str = "demo") -> dict[str, Any]:
    reference = {"apiVersion": "serving.epd.dev/v1alpha1", "kind": "DeepSeekV41Deployment", "controller": True}
    owners = [{**reference, "name": owner, "uid": f"uid-of-{owner}"}]
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version), "ownerReferences": owners}}


class Lists:
    """A cluster that can only list."""

    def __init__(self) -> None:
        self.objects: dict[Kind, list[dict[str, Any]]] = {}
        self.asked: list[tuple[Kind, str | None, str]] = []
        self.failing = 0
        self.version = 50

    async def list(self, kind: Kind, namespace: str | None, selector: str) -> tuple[list[dict[str, Any]], str]:
        self.asked.append((kind, namespace, selector))
        if self.failing:
            self.failing -= 1
            raise Transport("LIST", "reset")
        return self.objects.get(kind, []), str(self.version)


def build(scope: WatchScope | None = None) -> tuple[Sync, Lists, Cache, WorkQueue[Key], Liveness]:
    cache, queue, lists = Cache(), WorkQueue[Key](), Lists()
    liveness = Liveness(asyncio.get_running_loop().time)
    sync = Sync(lists, Intake(cache, queue), liveness, scope or WatchScope(), 600.0)  # type: ignore[arg-type]  # lists only
    liveness.expect(sync.streams())
    return sync, lists, cache, queue, liveness


def test_ready_only_when_every_collection_was_listed_after_kopfs_own_list(virtual: Virtual) -> None:
    async def main() -> None:
        sync, lists, cache, queue, _ = build()
        lists.objects = {CUSTOM: [custom(1)], DEPLOYMENT: [child("a", 2)]}
        running = asyncio.create_task(sync.run())
        await asyncio.sleep(10)
        assert lists.asked == []
        for kind in WATCHED[1:]:
            sync.answered(kind.path(), watch=False)
        await asyncio.sleep(1)
        assert not sync.ready.is_set()
        sync.answered(WATCHED[0].path(), watch=False)
        await asyncio.sleep(1)
        assert sync.ready.is_set()
        assert {(kind, actual) for kind, _, actual in lists.asked} == {(kind, selector(kind)) for kind in WATCHED}
        assert len(cache) == 2
        assert await queue.get() == KEY
        running.cancel()

    virtual(main())


def test_a_deletion_that_no_watch_saw_is_noticed_after_kopf_lists_anew(virtual: Virtual) -> None:
    async def main() -> None:
        sync, lists, cache, queue, _ = build()
        cache.put(CUSTOM, custom(1))
        cache.put(DEPLOYMENT, child("a", 2))
        running = asyncio.create_task(sync.run())
        sync.answered(DEPLOYMENT.path(), watch=False)
        assert await queue.get() == KEY
        assert cache.get(DEPLOYMENT, "ns", "a") is None
        assert len(lists.asked) == 1
        running.cancel()

    virtual(main())


def test_a_failed_list_is_tried_again_and_watches_and_strangers_cause_none(virtual: Virtual) -> None:
    async def main() -> None:
        sync, lists, _, _, _ = build()
        running = asyncio.create_task(sync.run())
        sync.answered(POD.path(), watch=True)
        sync.answered("/api/v1/namespaces", watch=False)
        await asyncio.sleep(5)
        assert lists.asked == []
        lists.failing = 3
        sync.answered(POD.path(), watch=False)
        sync.answered(POD.path(), watch=False)
        await asyncio.sleep(10)
        assert len(lists.asked) == 4
        running.cancel()

    virtual(main())


def test_resync_lists_and_reconciles_everything(virtual: Virtual) -> None:
    async def main() -> None:
        sync, lists, cache, queue, _ = build()
        cache.put(CUSTOM, custom(1))
        lists.objects = {CUSTOM: [custom(1)]}
        tasks = [asyncio.create_task(sync.run()), asyncio.create_task(sync.resync())]
        await asyncio.sleep(599)
        assert len(queue) == 0
        await asyncio.sleep(62)
        assert len(queue) == 1
        assert len(lists.asked) == len(WATCHED)
        for task in tasks:
            task.cancel()

    virtual(main())


def test_a_namespaced_scope_lists_namespaces_one_by_one(virtual: Virtual) -> None:
    async def main() -> None:
        sync, lists, _, _, liveness = build(WatchScope(("a", "b")))
        running = asyncio.create_task(sync.run())
        sync.answered(POD.path("b"), watch=False)
        sync.answered(POD.path(), watch=False)
        await asyncio.sleep(1)
        assert [(kind, namespace) for kind, namespace, _ in lists.asked] == [(POD, "b")]
        assert {"pods@a", "pods@b"} <= set(liveness.ages())
        running.cancel()

    virtual(main())


def test_signs_of_life_are_counted_per_watch(virtual: Virtual) -> None:
    async def main() -> None:
        sync, _, _, _, liveness = build()
        liveness.expect(["leases"])
        liveness.seen("unexpected")
        await asyncio.sleep(LEASE_BOUND + 1)
        assert liveness.faults("leases") == [f"no sign of life from the watch on leases for {LEASE_BOUND + 1:.0f} s"]
        await asyncio.sleep(WATCH_BOUND)
        sync.event_handled(POD, "ns")
        sync.answered(DEPLOYMENT.path(), watch=True)
        liveness.seen("leases")
        silent = liveness.faults("leases")
        assert len(silent) == len(WATCHED) - 2
        assert not any("pods " in line or "deployments.apps " in line for line in silent)

    virtual(main())


def test_news_wakes_the_owner_and_an_echo_nobody(virtual: Virtual) -> None:
    async def main() -> None:
        cache, queue = Cache(), WorkQueue[Key](uniform=lambda _, high: high)
        intake = Intake(cache, queue)
        intake.saw(DEPLOYMENT, child("a", 2))
        queue.done(await queue.get())
        intake.saw(DEPLOYMENT, child("a", 2))
        await asyncio.sleep(1)
        assert len(queue) == 0
        intake.saw(DEPLOYMENT, child("a", 3, owner="other"))
        assert {await queue.get(), await queue.get()} == {KEY, Key("ns", "other")}
        queue.done(KEY)
        intake.lost(DEPLOYMENT, child("a", 4, owner="other"))
        intake.lost(DEPLOYMENT, child("a", 4, owner="other"))
        queue.done(Key("ns", "other"))
        assert await queue.get() == Key("ns", "other")
        await asyncio.sleep(1)
        assert len(queue) == 0

    virtual(main())


def test_only_a_new_wish_of_the_user_ends_a_back_off(virtual: Virtual) -> None:
    async def main() -> None:
        cache, queue = Cache(), WorkQueue[Key](uniform=lambda _, high: high)
        intake = Intake(cache, queue)
        intake.saw(CUSTOM, custom(1))
        queue.done(await queue.get())
        for _ in range(6):
            queue.retry(KEY)
        intake.saw(CUSTOM, custom(2))
        assert len(queue) == 0
        assert queue.failures(KEY) == 6
        intake.saw(CUSTOM, custom(3, generation=2))
        assert len(queue) == 1
        assert queue.failures(KEY) == 0

    virtual(main())


def test_pods_wake_the_resource_of_their_label(virtual: Virtual) -> None:
    async def main() -> None:
        queue = WorkQueue[Key]()
        intake = Intake(Cache(), queue)
        metadata = {"name": "p", "namespace": "ns", "resourceVersion": "1"}
        intake.saw(POD, {"metadata": metadata})
        await asyncio.sleep(1)
        assert len(queue) == 0
        labels = {"app.kubernetes.io/instance": "demo"}
        intake.saw(POD, {"metadata": {**metadata, "resourceVersion": "2", "labels": labels}})
        assert await queue.get() == KEY

    virtual(main())

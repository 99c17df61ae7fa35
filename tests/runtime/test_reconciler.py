from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from epd_operator.kube import ApiError, Conflict, Forbidden, Invalid, NotFound, ServerError, Transport
from epd_operator.kube.kind import SERVICE, Kind
from epd_operator.plan import Event, Observed, Plan, Ref, Settings
from epd_operator.runtime.cache import Cache
from epd_operator.runtime.reconciler import CONFLICT_SECONDS, LATE_SECONDS, LEAVING_SECONDS, ROUNDS, Reconciler
from epd_operator.runtime.watch_scope import CUSTOM, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KEY = Key("ns", "demo")
UID = "cr-uid"
SETTINGS = Settings("router:1", "worker:1", "0")


def tree(value: Any) -> Any:
    return {f"f:{key}": tree(item) for key, item in value.items()} if isinstance(value, dict) and value else {}


class MemoryCluster:
    """As much of an API server as the reconciler can tell from a real one; the e2e tests use the real one."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = 100
        self.calls: list[tuple[str, str]] = []
        self.errors: dict[tuple[str, str], ApiError] = {}
        self.rewrite: Callable[[dict[str, Any]], None] = lambda _: None

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [call for call in self.calls if call[0] != "get"]

    def _call(self, verb: str, name: str) -> None:
        self.calls.append((verb, name))
        if (verb, name) in self.errors:
            raise self.errors[verb, name]

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any]:
        self._call("get", name)
        if (kind.kind, name) not in self.objects:
            raise NotFound("GET", "none", status=404)
        return copy.deepcopy(self.objects[kind.kind, name])

    async def apply(self, kind: Kind, obj: Mapping[str, Any], manager: str) -> dict[str, Any]:
        self._call("apply", obj["metadata"]["name"])
        return self._store(kind, obj, manager, "")

    async def merge(self, kind: Kind, obj: Mapping[str, Any], manager: str) -> dict[str, Any]:
        self._call("merge", obj["metadata"]["name"])
        self.errors.pop(("apply", obj["metadata"]["name"]), None)  # what stood in the way is overwritten
        self.version += 1
        stored = self.objects[kind.kind, obj["metadata"]["name"]]
        if "spec" in obj:
            stored["spec"] = copy.deepcopy(obj["spec"])
            stored["metadata"]["managedFields"].append({"manager": manager, "operation": "Update"})
        else:
            assert obj["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]
            stored["metadata"]["managedFields"] = copy.deepcopy(obj["metadata"]["managedFields"])
        stored["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(stored)

    async def apply_status(self, kind: Kind, obj: Mapping[str, Any], manager: str) -> dict[str, Any]:
        self._call("apply_status", obj["metadata"]["name"])
        return self._store(kind, obj, manager, "status")

    def _store(self, kind: Kind, obj: Mapping[str, Any], manager: str, subresource: str) -> dict[str, Any]:
        place = (kind.kind, obj["metadata"]["name"])
        stored: dict[str, Any] = copy.deepcopy(self.objects.get(place) or {"metadata": {"uid": str(uuid.uuid4())}})
        self.version += 1
        for name, value in obj.items():
            if name != "metadata":
                stored[name] = copy.deepcopy(value)
        stored["metadata"] |= copy.deepcopy(dict(obj["metadata"])) | {"resourceVersion": str(self.version)}
        metadata = {k: v for k, v in obj["metadata"].items() if k not in {"name", "namespace", "uid"}}
        body = {k: v for k, v in obj.items() if k not in {"apiVersion", "kind", "metadata"}}
        fields = tree(body | ({"metadata": metadata} if metadata else {}))
        entry = {"manager": manager, "operation": "Apply", "fieldsV1": fields}
        stored["metadata"]["managedFields"] = [entry | ({"subresource": subresource} if subresource else {})]
        self.rewrite(stored)
        self.objects[place] = stored
        return copy.deepcopy(stored)

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str) -> dict[str, Any]:
        self._call("delete", name)
        actual = self.objects.get((kind.kind, name))
        if actual is None:
            raise NotFound("DELETE", "none", status=404)
        if actual["metadata"]["uid"] != uid:
            raise Conflict("DELETE", "uid", status=409)
        del self.objects[kind.kind, name]
        return {"kind": "Status", "status": "Success"}


class Routers:
    def __init__(self) -> None:
        self.moving: dict[Key, bool] = {}

    def documents(self, key: Key) -> list[dict[str, Any]]:
        return [{"pod": "r"}] if key in self.moving else []

    def follow(self, key: Key, *, moving: bool) -> None:
        self.moving[key] = moving

    def drop(self, key: Key) -> None:
        self.moving.pop(key, None)


def service(name: str, port: int = 80, uid: str = UID) -> dict[str, Any]:
    owner = {"apiVersion": "serving.epd.dev/v1alpha1", "kind": "DeepSeekV41Deployment", "name": "demo", "uid": uid}
    metadata = {"name": name, "namespace": "ns", "ownerReferences": [{**owner, "controller": True}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"port": port}}


class Planner:
    """Says what the test wants, and notes what it was told."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = list(objects)
        self.prune: list[Ref] = []
        self.events: tuple[Event, ...] = ()
        self.after: float | None = None
        self.seen: list[Observed] = []

    def __call__(self, custom: Mapping[str, Any], observed: Observed, settings: Settings) -> Plan:
        self.seen.append(observed)
        status = {"conflicts": list(observed.conflicts), "failures": list(observed.failures)}
        return Plan(
            tuple(self.objects),
            tuple(self.prune),
            status,
            moving=bool(observed.failures),
            events=self.events,
            after=self.after,
        )


class World:
    def __init__(self, *objects: dict[str, Any]) -> None:
        self.cluster = MemoryCluster()
        self.cache = Cache()
        self.routers = Routers()
        self.planner = Planner(*objects)
        self.recorded: list[Event] = []
        self.now = 100.0
        self.applied: list[tuple[str, str]] = []
        custom = {"metadata": {"name": "demo", "namespace": "ns", "uid": UID, "resourceVersion": "1", "generation": 1}}
        self.cluster.objects["DeepSeekV41Deployment", "demo"] = custom
        self.cache.put(CUSTOM, custom)
        self.reconciler = self.fresh()

    def fresh(self) -> Reconciler:
        async def record(_custom: Mapping[str, Any], events: tuple[Event, ...]) -> None:
            self.recorded.extend(events)

        return Reconciler(
            self.cluster,  # type: ignore[arg-type]  # the verbs that a reconciler uses
            self.cache,
            self.routers,
            SETTINGS,
            applied=lambda kind, outcome: self.applied.append((kind, outcome)),
            record=record,
            planner=self.planner,
            clock=lambda: self.now,
        )

    async def run(self) -> str:
        self.cluster.calls.clear()
        return (await self.reconciler.reconcile(KEY)).result

    @property
    def status(self) -> dict[str, Any]:
        actual = self.cache.get(CUSTOM, *KEY)
        assert actual is not None
        status: dict[str, Any] = actual["status"]
        return status


async def test_creates_then_rests() -> None:
    world = World(service("a"), service("b"))
    assert await world.run() == "success"
    assert world.cluster.writes == [("apply", "a"), ("apply", "b"), ("apply_status", "demo")]
    assert world.applied == [("Service", "created"), ("Service", "created")]
    assert await world.run() == "success"
    assert world.cluster.calls == []


async def test_a_restart_writes_nothing() -> None:
    world = World(service("a"))
    await world.run()
    world.cache, fresh = Cache(), world.cluster.objects
    world.cache.put(CUSTOM, fresh["DeepSeekV41Deployment", "demo"])
    world.cache.put(SERVICE, fresh["Service", "a"])
    world.reconciler = world.fresh()
    await world.run()
    assert world.cluster.calls == []


async def test_a_plan_that_depends_on_what_it_made_is_followed_to_its_end() -> None:
    world = World(service("a"))
    original = world.planner.__call__

    def grow(custom: Mapping[str, Any], observed: Observed, settings: Settings) -> Plan:
        made = {child["metadata"]["name"] for child in observed.children}
        world.planner.objects = [service("a"), *([service("b")] if "a" in made else [])]
        return original(custom, observed, settings)

    world.reconciler = Reconciler(world.cluster, world.cache, world.routers, SETTINGS, planner=grow)  # type: ignore[arg-type]
    await world.run()
    assert world.cluster.writes == [("apply", "a"), ("apply", "b"), ("apply_status", "demo")]


async def test_a_plan_that_never_settles_goes_back_in_line() -> None:
    world = World(service("a", port=0))

    def restless(custom: Mapping[str, Any], observed: Observed, settings: Settings) -> Plan:
        world.planner.objects[0]["spec"] = {"port": world.planner.objects[0]["spec"]["port"] + 1}
        return world.planner(custom, observed, settings)

    world.reconciler = Reconciler(world.cluster, world.cache, world.routers, SETTINGS, planner=restless)  # type: ignore[arg-type]
    assert await world.run() == "requeue"
    assert world.cluster.writes.count(("apply", "a")) == ROUNDS


async def test_a_foreign_object_is_reported_and_never_touched() -> None:
    world = World(service("a"), service("b"))
    foreign = {"metadata": {"name": "a", "namespace": "ns", "uid": "x", "resourceVersion": "5"}, "spec": {"port": 1}}
    world.cluster.objects["Service", "a"] = copy.deepcopy(foreign)
    outcome = await world.reconciler.reconcile(KEY)
    assert (outcome.result, outcome.after) == ("requeue_after", CONFLICT_SECONDS)
    assert world.cluster.objects["Service", "a"] == foreign
    assert world.cluster.writes == [("apply", "b"), ("apply_status", "demo")]
    assert world.status["conflicts"] == ["Service/a"]
    del world.cluster.objects["Service", "a"]
    assert await world.run() == "success"
    assert world.status["conflicts"] == []


async def test_an_object_of_another_owner_in_the_cache_is_foreign_too() -> None:
    world = World(service("a"))
    stored = world.cluster._store(SERVICE, service("a", uid="other-cr"), "epd-operator", "")
    world.cache.put(SERVICE, stored)
    assert (await world.reconciler.reconcile(KEY)).result == "requeue_after"
    assert ("apply", "a") not in world.cluster.calls


async def test_ours_without_its_label_or_owner_is_taken_back() -> None:
    world = World(service("a"))
    await world.run()
    stripped = copy.deepcopy(world.cluster.objects["Service", "a"])
    del stripped["metadata"]["ownerReferences"]
    stripped["metadata"]["resourceVersion"] = "500"
    world.cluster.objects["Service", "a"] = stripped
    world.cache.remove(SERVICE, stripped)  # its label is gone as well: the watch says it was deleted
    await world.run()
    assert ("apply", "a") in world.cluster.calls


async def test_one_failing_object_does_not_stop_the_others_and_is_reported() -> None:
    world = World(service("a"), service("b"))
    world.cluster.errors["apply", "a"] = Forbidden("PATCH", "exceeded quota: q", status=403, reason="Forbidden")
    assert await world.run() == "error"
    assert ("apply", "b") in world.cluster.calls
    assert world.status["failures"] == ["Service/a: Forbidden: exceeded quota: q"]
    assert await world.run() == "error"
    assert world.cluster.writes == [("apply", "a")]
    world.cluster.errors.clear()
    assert await world.run() == "success"
    assert world.status["failures"] == []


@pytest.mark.parametrize(
    "error", [Invalid("PATCH", "bad", status=422), ServerError("PATCH", "failed calling webhook", status=500)]
)
async def test_refusals_of_any_kind_end_in_the_status(error: ApiError) -> None:
    world = World(service("a"))
    world.cluster.errors["apply", "a"] = error
    assert await world.run() == "error"
    assert len(world.status["failures"]) == 1


async def test_an_edit_that_makes_the_merge_invalid_is_overwritten_without_a_trace() -> None:
    world = World(service("a"))
    await world.run()
    world.planner.objects = [service("a", port=81)]
    world.cluster.errors["apply", "a"] = Invalid("PATCH", "Duplicate value", status=422)
    assert await world.run() == "success"
    assert [call for call in world.cluster.writes if call[1] == "a"] == [
        ("apply", "a"),
        ("merge", "a"),
        ("merge", "a"),
        ("apply", "a"),
    ]
    stored = world.cluster.objects["Service", "a"]
    assert stored["spec"] == {"port": 81}
    assert [entry["manager"] for entry in stored["metadata"]["managedFields"]] == ["epd-operator"]
    await world.run()
    assert world.cluster.calls == []


async def test_a_namespace_that_goes_away_is_left_in_peace() -> None:
    world = World(service("a"), service("b"))
    leaving = Forbidden("PATCH", "it is being terminated", status=403)
    leaving.causes = frozenset({"NamespaceTerminating"})
    world.cluster.errors["apply", "a"] = leaving
    outcome = await world.reconciler.reconcile(KEY)
    assert (outcome.result, outcome.after) == ("requeue_after", LEAVING_SECONDS)
    assert world.cluster.writes == [("apply", "a")]
    assert world.recorded == []
    assert await world.run() == "requeue_after"
    assert world.cluster.calls == []
    world.now += LEAVING_SECONDS
    world.cluster.errors.clear()
    assert await world.run() == "success"


async def test_without_an_answer_nothing_is_concluded() -> None:
    world = World(service("a"), service("b"))
    world.cluster.errors["apply", "a"] = Transport("PATCH", "timed out")
    with pytest.raises(Transport):
        await world.run()
    assert world.cluster.writes == [("apply", "a")]


async def test_what_the_server_rewrites_for_good_is_applied_once() -> None:
    world = World(service("a"))

    def rewrite(stored: dict[str, Any]) -> None:
        if "spec" in stored and "port" in stored["spec"]:
            stored["spec"]["port"] = 8080

    world.cluster.rewrite = rewrite
    await world.run()
    await world.run()
    assert world.cluster.calls == []
    world.planner.objects = [service("a", port=81)]
    await world.run()
    assert ("apply", "a") in world.cluster.calls


async def test_prunes_ours_once() -> None:
    world = World(service("a"), service("old"))
    await world.run()
    uid = world.cluster.objects["Service", "old"]["metadata"]["uid"]
    world.planner.objects = [service("a")]
    world.planner.prune = [Ref("v1", "Service", "old", uid)]
    await world.run()
    assert world.cluster.writes == [("delete", "old")]
    assert ("Service", "pruned") in world.applied
    await world.run()
    assert world.cluster.calls == []


async def test_prune_spares_a_namesake() -> None:
    world = World(service("old"))
    await world.run()
    world.planner.objects = []
    world.planner.prune = [Ref("v1", "Service", "old", "another-uid")]
    await world.run()
    assert ("Service", "old") in world.cluster.objects


async def test_a_leaving_resource_is_left_to_the_garbage_collector() -> None:
    world = World(service("a"))
    await world.run()
    leaving = copy.deepcopy(world.cluster.objects["DeepSeekV41Deployment", "demo"])
    leaving["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "900"}
    world.cache.put(CUSTOM, leaving)
    world.cache.remove(SERVICE, {**service("a"), "metadata": {**service("a")["metadata"], "resourceVersion": "901"}})
    assert await world.run() == "success"
    assert world.cluster.calls == []
    assert KEY not in world.routers.moving


@pytest.mark.parametrize(("after", "wait"), [(40.0, 40.0 + LATE_SECONDS), (-1.0, LATE_SECONDS), (None, None)])
async def test_what_time_alone_changes_is_looked_at_when_it_is_time(after: float | None, wait: float | None) -> None:
    world = World(service("a"))
    await world.run()
    world.cluster.calls.clear()
    world.planner.after = after
    outcome = await world.reconciler.reconcile(KEY)
    assert (outcome.result, outcome.after) == ("success" if wait is None else "requeue_after", wait)
    assert world.cluster.writes == []


async def test_of_two_reasons_to_look_again_the_sooner_counts() -> None:
    world = World(service("a"))
    stored = world.cluster._store(SERVICE, service("a", uid="other-cr"), "epd-operator", "")
    world.cache.put(SERVICE, stored)
    world.planner.after = 5.0
    await world.run()
    assert (await world.reconciler.reconcile(KEY)).after == 5.0 + LATE_SECONDS
    world.planner.after = 5000.0
    assert (await world.reconciler.reconcile(KEY)).after == CONFLICT_SECONDS


async def test_an_unknown_key_is_no_error() -> None:
    world = World()
    assert (await world.reconciler.reconcile(Key("ns", "gone"))).result == "success"


async def test_events_follow_a_written_status_only() -> None:
    world = World(service("a"))
    world.planner.events = (Event("Normal", "Ready", "all is well"),)
    await world.run()
    assert [event.reason for event in world.recorded] == ["Ready"]
    await world.run()
    assert len(world.recorded) == 1


async def test_the_planner_sees_children_documents_and_the_last_failures() -> None:
    world = World(service("a"))
    world.cluster.errors["apply", "a"] = Forbidden("PATCH", "no", status=403)
    await world.run()
    assert world.routers.moving == {KEY: True}
    world.cluster.errors.clear()
    await world.run()
    first, last = world.planner.seen[2], world.planner.seen[-1]
    assert first.failures == ("Service/a: 403: no",)
    assert last.failures == ()
    assert [child["metadata"]["name"] for child in last.children] == ["a"]
    assert last.routers == [{"pod": "r"}]
    assert last.now.tzinfo is not None

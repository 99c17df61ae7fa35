from __future__ import annotations

import copy
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from typing_extensions import override

from epd_operator.kube.kind import DEPLOYMENT, POD, SERVICE
from epd_operator.runtime.cache import Cache
from epd_operator.runtime.watch_scope import CUSTOM, Key

NAMES = st.sampled_from(["a", "b", "c"])
UIDS = st.sampled_from(["uid-1", "uid-2"])


def child(
    name: str, version: int, *, owner: str | None = "cr", namespace: str = "ns", uid: str = "u"
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    if owner:
        reference = {"apiVersion": "serving.epd.dev/v1alpha1", "kind": "DeepSeekV41Deployment", "controller": True}
        metadata["ownerReferences"] = [{**reference, "name": "demo", "uid": owner}]
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}


def test_older_news_and_echoes_are_no_news() -> None:
    cache = Cache()
    assert cache.put(DEPLOYMENT, child("a", 10))
    assert not cache.put(DEPLOYMENT, child("a", 10))
    assert not cache.put(DEPLOYMENT, child("a", 9))
    assert cache.put(DEPLOYMENT, child("a", 101))


def test_versions_are_compared_as_numbers() -> None:
    cache = Cache()
    cache.put(DEPLOYMENT, child("a", 9))
    assert cache.put(DEPLOYMENT, child("a", 10))


def test_late_news_of_the_dead_is_ignored() -> None:
    cache = Cache()
    cache.put(DEPLOYMENT, child("a", 5))
    assert cache.remove(DEPLOYMENT, child("a", 8))
    assert not cache.put(DEPLOYMENT, child("a", 7))
    assert cache.get(DEPLOYMENT, "ns", "a") is None
    assert cache.put(DEPLOYMENT, child("a", 9, uid="successor"))


def test_an_old_deletion_does_not_remove_a_namesake() -> None:
    cache = Cache()
    cache.put(DEPLOYMENT, child("a", 9, uid="successor"))
    assert not cache.remove(DEPLOYMENT, child("a", 8))
    assert cache.get(DEPLOYMENT, "ns", "a") is not None


def test_children_are_found_by_owner_and_move_with_it() -> None:
    cache = Cache()
    cache.put(DEPLOYMENT, child("b", 1))
    cache.put(DEPLOYMENT, child("a", 2))
    cache.put(SERVICE, {**child("s", 3, owner=None), "kind": "Service", "apiVersion": "v1"})
    assert [obj["metadata"]["name"] for obj in cache.children("cr")] == ["a", "b"]
    cache.put(DEPLOYMENT, child("a", 4, owner="other"))
    assert [obj["metadata"]["name"] for obj in cache.children("cr")] == ["b"]
    assert [obj["metadata"]["name"] for obj in cache.children("other")] == ["a"]
    cache.remove(DEPLOYMENT, child("b", 6))
    assert cache.children("cr") == []


def test_pods_are_trimmed_and_found_by_instance() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "resourceVersion": "1",
            "labels": {"app.kubernetes.io/instance": "demo"},
            "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {"nodeName": "n", "volumes": [{"name": "big"}], "containers": [{"name": "c", "image": "i", "env": []}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }
    cache = Cache()
    cache.put(POD, pod)
    (actual,) = cache.pods(Key("ns", "demo"))
    assert actual["spec"] == {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
    assert "managedFields" not in actual["metadata"]
    assert actual["status"] == pod["status"]
    assert cache.pods(Key("other", "demo")) == []


def test_a_list_shows_what_vanished_but_not_what_came_later() -> None:
    cache = Cache()
    for name, version in (("a", 1), ("b", 2), ("late", 30)):
        cache.put(DEPLOYMENT, child(name, version))
    cache.put(DEPLOYMENT, child("elsewhere", 3, namespace="other"))
    cache.put(SERVICE, {**child("b", 2), "kind": "Service", "apiVersion": "v1"})
    news, gone = cache.replace(DEPLOYMENT, "ns", [child("a", 1), child("new", 15)], "20")
    assert [obj["metadata"]["name"] for obj in news] == ["new"]
    assert [obj["metadata"]["name"] for obj in gone] == ["b"]
    assert cache.get(SERVICE, "ns", "b") is not None
    assert cache.get(DEPLOYMENT, "other", "elsewhere") is not None
    assert cache.get(DEPLOYMENT, "ns", "late") is not None


def test_keys_are_those_of_custom_resources() -> None:
    cache = Cache()
    cache.put(CUSTOM, {"metadata": {"name": "demo", "namespace": "ns", "uid": "cr", "resourceVersion": "1"}})
    cache.put(DEPLOYMENT, child("a", 2))
    assert cache.keys() == [Key("ns", "demo")]
    assert [obj["kind"] for obj in cache.custom()] == ["DeepSeekV41Deployment"]


class DeliveredInAnyOrder(RuleBasedStateMachine):
    """A server's history reaches the cache late, twice and out of order; in the end both agree."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()
        self.version = 0
        self.truth: dict[str, dict[str, Any]] = {}
        self.pending: list[tuple[str, dict[str, Any]]] = []

    def _next(self) -> int:
        self.version += 1
        return self.version

    @rule(name=NAMES, owner=UIDS)
    def write(self, name: str, owner: str) -> None:
        uid = self.truth.get(name, {}).get("metadata", {}).get("uid") or f"u{self.version}"
        obj = child(name, self._next(), owner=owner, uid=uid)
        self.truth[name] = obj
        self.pending.append(("PUT", obj))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        obj = self.truth.pop(name, None)
        if obj is not None:
            last = copy.deepcopy(obj)
            last["metadata"]["resourceVersion"] = str(self._next())
            self.pending.append(("DELETED", last))

    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        if self.pending:
            index = data.draw(st.integers(0, len(self.pending) - 1))
            keep = data.draw(st.booleans())
            self._deliver(*(self.pending[index] if keep else self.pending.pop(index)))

    @rule()
    def relist(self) -> None:
        self.cache.replace(DEPLOYMENT, None, list(self.truth.values()), str(self.version))
        assert self._cached() == self._true()

    def _deliver(self, kind: str, obj: dict[str, Any]) -> None:
        if kind == "PUT":
            self.cache.put(DEPLOYMENT, obj)
        else:
            self.cache.remove(DEPLOYMENT, obj)

    def _cached(self) -> dict[str, str]:
        actual = (self.cache.get(DEPLOYMENT, "ns", name) for name in "abc")
        return {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in actual if obj}

    def _true(self) -> dict[str, str]:
        return {name: obj["metadata"]["resourceVersion"] for name, obj in self.truth.items()}

    @invariant()
    def the_index_agrees_with_the_objects(self) -> None:
        indexed = {obj["metadata"]["name"]: uid for uid in ("uid-1", "uid-2") for obj in self.cache.children(uid)}
        stored = {
            name: obj["metadata"]["ownerReferences"][0]["uid"]
            for name in "abc"
            if (obj := self.cache.get(DEPLOYMENT, "ns", name))
        }
        assert indexed == stored

    @override
    def teardown(self) -> None:
        for kind, obj in self.pending:
            self._deliver(kind, obj)
        assert self._cached() == self._true()


DeliveredInAnyOrder.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestDeliveredInAnyOrder = DeliveredInAnyOrder.TestCase

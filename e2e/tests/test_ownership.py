"""Children come back, strangers are left alone, and a delete always ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.kube import Kube, Object, conditions, until
from e2e.samples import sample
from e2e.stack import OPERATOR_NAMESPACE, RELEASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOON = 20  # seconds: an edit is undone by a watch event, not by the resync
KINDS = (
    ("apps/v1", "Deployment"),
    ("apps/v1", "ControllerRevision"),
    ("v1", "Service"),
    ("v1", "ServiceAccount"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
)


def children(kube: Kube, namespace: str, name: str) -> dict[tuple[str, str], Object]:
    """The objects of a deployment by kind and name."""
    selector = f"app.kubernetes.io/managed-by=epd-operator,app.kubernetes.io/instance={name}"
    return {
        (kind, child["metadata"]["name"]): {**child, "apiVersion": version, "kind": kind}
        for version, kind in KINDS
        for child in kube.find(version, kind, namespace, selector)
    }


def settled(kube: Kube, namespace: str, name: str) -> None:
    """Wait until every child exists: the router's Deployment is applied last."""
    last = ("Deployment", f"{name}-router")
    until("the children", lambda: last in children(kube, namespace, name), seconds=SOON)


@pytest.fixture(scope="module")
def unscheduled(operator: Kube, new_namespace: Callable[[str], str]) -> Object:
    """A deployment whose children exist but whose pods find no node: nothing here needs them to run."""
    namespace = new_namespace("e2e-ownership")
    deployment = sample("owned", namespace)
    for role in deployment["spec"]["roles"].values():
        role.setdefault("pod", {})["nodeSelector"] = {"e2e": "nowhere"}
    operator.apply(deployment)
    settled(operator, namespace, "owned")
    return deployment


def test_a_deleted_child_comes_back(operator: Kube, unscheduled: Object) -> None:
    namespace = unscheduled["metadata"]["namespace"]
    before = children(operator, namespace, "owned")
    assert {kind for kind, _ in before} == {kind for _, kind in KINDS}
    for (kind, name), child in before.items():
        operator.delete(child["apiVersion"], kind, namespace, name)

    def all_new() -> bool:
        now = children(operator, namespace, "owned")
        return set(now) == set(before) and all(
            now[key]["metadata"]["uid"] != before[key]["metadata"]["uid"] for key in before
        )

    until("every child made anew", all_new, seconds=SOON)


@pytest.mark.parametrize(
    ("version", "kind", "suffix", "patch"),
    [
        ("v1", "Service", "", {"spec": {"ports": [{"name": "http", "port": 9999, "targetPort": "http"}]}}),
        ("policy/v1", "PodDisruptionBudget", "-decode", {"spec": {"maxUnavailable": 7}}),
        ("v1", "Service", "-prefill", {"metadata": {"labels": {"app.kubernetes.io/component": "stolen"}}}),
        ("networking.k8s.io/v1", "NetworkPolicy", "-decode", {"spec": {"ingress": None}}),
    ],
)
def test_an_edited_child_is_put_right(
    operator: Kube, unscheduled: Object, version: str, kind: str, suffix: str, patch: Object
) -> None:
    namespace = unscheduled["metadata"]["namespace"]
    name = f"owned{suffix}"
    before = operator.get(version, kind, namespace, name)
    assert before is not None
    edited = operator.merge(version, kind, namespace, name, patch)
    assert edited["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]

    def restored() -> bool:
        now = operator.get(version, kind, namespace, name) or {}
        same = all(now.get(part) == before.get(part) for part in ("spec", "rules", "subjects", "roleRef"))
        return same and now["metadata"]["labels"] == before["metadata"]["labels"]

    until(f"{kind} {name} as it was", restored, seconds=SOON)


def test_a_scaled_child_is_scaled_back(operator: Kube, unscheduled: Object) -> None:
    namespace = unscheduled["metadata"]["namespace"]
    name = next(n for k, n in children(operator, namespace, "owned") if k == "Deployment" and "-prefill-" in n)
    operator.merge("apps/v1", "Deployment", namespace, name, {"spec": {"replicas": 5}})

    def replicas() -> bool:
        actual = operator.get("apps/v1", "Deployment", namespace, name)
        return actual is not None and actual["spec"]["replicas"] == 1

    until("one replica again", replicas, seconds=SOON)


STRAY_SPECS: dict[str, Object] = {
    "Deployment": {
        "replicas": 0,
        "selector": {"matchLabels": {"stray": "yes"}},
        "template": {
            "metadata": {"labels": {"stray": "yes"}},
            "spec": {"containers": [{"name": "none", "image": "none"}]},
        },
    },
    "Service": {"ports": [{"port": 80}]},
    "PodDisruptionBudget": {"maxUnavailable": 1, "selector": {"matchLabels": {"stray": "yes"}}},
    "NetworkPolicy": {"podSelector": {"matchLabels": {"stray": "yes"}}},
}


def test_a_leftover_of_ours_is_pruned(operator: Kube, unscheduled: Object) -> None:
    """An object with our label and owner that no plan names, as an older release may have left it, one of each kind."""
    namespace = unscheduled["metadata"]["namespace"]
    live = operator.deployment(namespace, "owned")
    assert live is not None
    owner = {
        "apiVersion": live["apiVersion"],
        "kind": live["kind"],
        "name": "owned",
        "uid": live["metadata"]["uid"],
        "controller": True,
    }
    labels = {"app.kubernetes.io/managed-by": "epd-operator", "app.kubernetes.io/instance": "owned"}
    for version, kind in KINDS:
        stray: Object = {
            "apiVersion": version,
            "kind": kind,
            "metadata": {
                "name": "owned-stray",
                "namespace": namespace,
                "labels": labels,
                "ownerReferences": [owner],
            },
        }
        if kind in STRAY_SPECS:
            stray["spec"] = STRAY_SPECS[kind]
        if kind == "RoleBinding":
            stray["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "owned-stray"}
        if kind == "ControllerRevision":
            stray |= {"revision": 1, "data": {"none": True}}
        operator.apply(stray)

    def strays() -> list[str]:
        return [kind for kind, name in children(operator, namespace, "owned") if name == "owned-stray"]

    until("every leftover gone", lambda: not strays(), seconds=SOON)


def test_a_stranger_with_a_childs_name_is_left_alone_and_named(
    operator: Kube, new_namespace: Callable[[str], str]
) -> None:
    namespace = new_namespace("e2e-stranger")
    stranger = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "clash", "namespace": namespace, "labels": {"team": "other"}},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "other"}},
    }
    before = operator.apply(stranger)
    deployment = sample("clash", namespace)
    for role in deployment["spec"]["roles"].values():
        role.setdefault("pod", {})["nodeSelector"] = {"e2e": "nowhere"}
    operator.apply(deployment)

    def stalled() -> Object | None:
        actual = conditions(operator.deployment(namespace, "clash")).get("Stalled")
        return actual if actual and actual["status"] == "True" else None

    actual = until("Stalled", stalled, seconds=SOON)
    assert actual["reason"] == "NameConflict"
    assert "Service/clash" in actual["message"]
    after = operator.get("v1", "Service", namespace, "clash")
    assert after is not None
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

    operator.delete("v1", "Service", namespace, "clash")

    def cured() -> bool:
        now = operator.get("v1", "Service", namespace, "clash") or {"metadata": {}}
        state = conditions(operator.deployment(namespace, "clash"))
        return bool(now["metadata"].get("ownerReferences")) and state["Stalled"]["status"] == "False"

    until("our own Service and no stall", cured, seconds=120)


def gone(kube: Kube, namespace: str, name: str) -> bool:
    """Whether a deployment and all its children are gone."""
    return kube.deployment(namespace, name) is None and not children(kube, namespace, name)


def start(kube: Kube, namespace: str, name: str) -> None:
    """Apply a deployment without a place for its engine pods and wait for its children."""
    deployment = sample(name, namespace)
    for role in deployment["spec"]["roles"].values():
        role.setdefault("pod", {})["nodeSelector"] = {"e2e": "nowhere"}
    kube.apply(deployment)
    settled(kube, namespace, name)


def test_delete_with_the_operator_running(operator: Kube, new_namespace: Callable[[str], str]) -> None:
    namespace = new_namespace("e2e-delete")
    start(operator, namespace, "one")
    operator.delete("serving.epd.dev/v1alpha1", "DeepSeekV41Deployment", namespace, "one")
    until("deployment and children gone", lambda: gone(operator, namespace, "one"), seconds=60)
    start(operator, namespace, "two")
    operator.delete("v1", "Namespace", None, namespace)
    until("namespace gone", lambda: operator.get("v1", "Namespace", None, namespace) is None, seconds=90)


@pytest.fixture
def operator_away(operator: Kube) -> Iterator[None]:
    """The operator scaled to zero, and back afterwards."""

    def scale(replicas: int) -> None:
        operator.merge("apps/v1", "Deployment", OPERATOR_NAMESPACE, RELEASE, {"spec": {"replicas": replicas}})

    def running() -> int:
        return len(operator.pods(OPERATOR_NAMESPACE, "app.kubernetes.io/name=epd-operator"))

    scale(0)
    until("no operator pod", lambda: running() == 0, seconds=60)
    yield
    scale(2)

    def back() -> bool:
        live = operator.get("apps/v1", "Deployment", OPERATOR_NAMESPACE, RELEASE) or {}
        return bool(live.get("status", {}).get("readyReplicas") == 2)

    until("the operator back", back, seconds=60)


def test_delete_with_the_operator_away(
    operator: Kube, new_namespace: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    first, second = new_namespace("e2e-orphan"), new_namespace("e2e-orphans")
    start(operator, first, "one")
    start(operator, second, "two")
    request.getfixturevalue("operator_away")
    operator.delete("serving.epd.dev/v1alpha1", "DeepSeekV41Deployment", first, "one")
    until("deployment and children gone", lambda: gone(operator, first, "one"), seconds=60)
    operator.delete("v1", "Namespace", None, second)
    until("namespace gone", lambda: operator.get("v1", "Namespace", None, second) is None, seconds=90)

"""What a real API server makes of SGLang deployments: no node has a GPU, so their pods wait for one."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes.dynamic.exceptions import NotFoundError, ResourceNotFoundError

from e2e.kube import API_VERSION, KIND, conditions, until
from e2e.stack import OPERATOR_NAMESPACE
from tools.cluster import access, addon

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.kube import Kube, Object

GROUP = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
ENGINE = {
    "type": "SGLang",
    "version": "0.5.23",
    "platform": "cuda-sm90",
    "image": "registry.example.com/sglang:never-pulled",
}


def crd(*args: str) -> None:
    """Run kubectl on the CustomResourceDefinition of LeaderWorkerSet."""
    subprocess.run([*access.kubectl(), *args], check=True, capture_output=True, text=True)


def served(kube: Kube) -> bool:
    """Whether the API server answers for LeaderWorkerSets, and tells clients so."""
    try:
        kube.dynamic.resources.invalidate_cache()
        kube.find(*GROUP, None)
    except (NotFoundError, ResourceNotFoundError):
        return False
    return True


@pytest.fixture(scope="module")
def namespace(operator: Kube, new_namespace: Callable[[str], str]) -> str:
    """A namespace under the restricted profile, on a cluster that the operator watches."""
    assert operator.find("v1", "Pod", OPERATOR_NAMESPACE)
    return new_namespace("e2e-sglang")


def deployment(namespace: str, name: str, roles: dict[str, Any]) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"path": "/weights"},
            "engine": ENGINE,
            "transfer": {"backend": "mooncake_tcp"},
            "roles": roles,
            "router": {"replicas": 0},
        },
    }


def reason(kube: Kube, namespace: str, name: str, condition: str) -> str:
    return str(conditions(kube.deployment(namespace, name)).get(condition, {}).get("reason", ""))


def child(kube: Kube, kind: tuple[str, str], namespace: str, instance: str, part: str) -> Object | None:
    selector = f"app.kubernetes.io/instance={instance},app.kubernetes.io/component={part}"
    return next(iter(kube.find(*kind, namespace, selector)), None)


def test_gpu_pods_wait_for_gpus_and_the_status_says_so(operator: Kube, namespace: str) -> None:
    roles = {
        "prefill": {"args": {"tp-size": 2}, "resources": {"cpu": "100m", "memory": "1Gi", "rdma": 1}},
        "decode": {"args": {"tp-size": 4}, "resources": {"cpu": "100m", "memory": "1Gi", "shm": "256Mi"}},
    }
    operator.apply(deployment(namespace, "gpu", roles))
    until(
        "the scheduler to refuse both roles",
        lambda: all(
            reason(operator, namespace, "gpu", f"{role}Ready") == "Unschedulable" for role in ("Prefill", "Decode")
        ),
        seconds=60,
    )
    live = operator.deployment(namespace, "gpu")
    assert live
    assert conditions(live)["Valid"]["reason"] == "Accepted"
    assert "nvidia.com/gpu" in conditions(live)["DecodeReady"]["message"]
    assert live["status"]["effective"]["shm"] == {"prefill": "512Mi", "decode": "256Mi"}
    (pod,) = operator.pods(namespace, "app.kubernetes.io/instance=gpu,app.kubernetes.io/component=decode")
    (engine,) = pod["spec"]["containers"]
    assert engine["resources"]["limits"] == {"memory": "1Gi", "nvidia.com/gpu": "4"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["epd-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "256Mi"}
    (other,) = operator.pods(namespace, "app.kubernetes.io/instance=gpu,app.kubernetes.io/component=prefill")
    assert other["spec"]["containers"][0]["resources"]["requests"]["rdma/ib"] == "1"


def test_a_role_across_nodes_waits_for_the_api_that_it_needs(operator: Kube, namespace: str) -> None:
    if access.given() is None:
        # Only the cluster that is ours: an add-on of somebody else's is left alone.
        crd("delete", "customresourcedefinition", addon.LEADER_WORKER_SET, "--ignore-not-found")
        operator.apply(deployment(namespace, "wide", groups()))
        until(
            "the missing API to be told",
            lambda: reason(operator, namespace, "wide", "Stalled") == "LeaderWorkerSetMissing",
            seconds=60,
        )
        assert "install it" in conditions(operator.deployment(namespace, "wide"))["Stalled"]["message"]
        assert child(operator, ("apps/v1", "Deployment"), namespace, "wide", "decode"), "the other role is made"
    crd("apply", "--server-side", "--force-conflicts", "-f", str(addon.leader_worker_set()))
    until("the API to be served", lambda: served(operator), seconds=30)
    operator.apply(deployment(namespace, "wide", groups()))
    until(
        "the group to be made once its API is there",
        lambda: child(operator, GROUP, namespace, "wide", "prefill"),
        seconds=90,
    )
    until(
        "the complaint to end",
        lambda: reason(operator, namespace, "wide", "Stalled") == "NotStalled",
        seconds=30,
    )


def groups() -> dict[str, Any]:
    small = {"cpu": "100m", "memory": "1Gi"}
    return {
        "prefill": {"nodes": 2, "args": {"tp-size": 16}, "resources": small, "pod": {"labels": {"team": "search"}}},
        "decode": {"args": {"tp-size": 8}, "resources": small},
    }


def test_the_api_server_keeps_a_group_as_it_was_planned(operator: Kube, namespace: str) -> None:
    actual = child(operator, GROUP, namespace, "wide", "prefill")
    assert actual
    spec = actual["spec"]
    assert (spec["replicas"], spec["startupPolicy"]) == (1, "LeaderCreated")
    template = spec["leaderWorkerTemplate"]
    assert (template["size"], template["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    leader, worker = template["leaderTemplate"], template["workerTemplate"]
    assert leader["metadata"]["labels"]["team"] == "search"
    assert leader["metadata"]["labels"]["serving.epd.dev/role"] == "prefill"
    assert "serving.epd.dev/role" not in worker["metadata"]["labels"]
    for pod in (leader["spec"], worker["spec"]):
        (engine,) = pod["containers"]
        assert "$(LWS_LEADER_ADDRESS):20000" in engine["args"]
        assert engine["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert engine["lifecycle"]["preStop"]["sleep"]["seconds"] == 10


def test_nothing_is_written_once_all_is_planned(operator: Kube, namespace: str) -> None:
    def versions() -> dict[str, str]:
        kinds = [GROUP, ("apps/v1", "Deployment"), ("apps/v1", "ControllerRevision")]
        selector = "app.kubernetes.io/managed-by=epd-operator"
        return {
            f"{kind[1]}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for kind in kinds
            for item in operator.find(*kind, namespace, selector)
            if item["metadata"]["labels"]["app.kubernetes.io/instance"] == "wide"
        }

    before = versions()
    assert any(name.startswith("LeaderWorkerSet/") for name in before)
    # An edit of the resource that changes no child makes the operator look at all of them.
    operator.merge(API_VERSION, KIND, namespace, "wide", {"spec": {"roles": {"decode": {"startupMinutes": 91}}}})
    until(
        "the edit to be seen",
        lambda: (
            (operator.deployment(namespace, "wide") or {})["status"]["observedGeneration"]
            == (operator.deployment(namespace, "wide") or {})["metadata"]["generation"]
        ),
        seconds=30,
    )
    time.sleep(3)
    changed = {name for name, version in versions().items() if before.get(name) != version}
    assert all(name.startswith("Deployment/wide-decode-") for name in changed), changed


def test_a_person_who_edits_a_group_is_put_right_and_a_group_given_up_goes(operator: Kube, namespace: str) -> None:
    actual = child(operator, GROUP, namespace, "wide", "prefill")
    assert actual
    name = actual["metadata"]["name"]
    operator.merge(*GROUP, namespace, name, {"spec": {"replicas": 5}})
    until(
        "the count to be set back",
        lambda: (operator.get(*GROUP, namespace, name) or {})["spec"]["replicas"] == 1,
        seconds=30,
    )
    roles = {"prefill": {"nodes": 1, "args": {"tp-size": 8}}}
    operator.merge(API_VERSION, KIND, namespace, "wide", {"spec": {"roles": roles}})
    until("the group to go", lambda: operator.get(*GROUP, namespace, name) is None, seconds=30)
    assert child(operator, ("apps/v1", "Deployment"), namespace, "wide", "prefill")


def test_pods_on_the_nodes_network_hold_their_nodes_ports(operator: Kube, namespace: str) -> None:
    host = "e2e-sglang-host"
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    operator.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": host, "labels": labels}})
    try:
        small = {"cpu": "100m", "memory": "1Gi"}
        roles = {name: {"hostNetwork": True, "resources": small} for name in ("prefill", "decode")}
        operator.apply(deployment(host, "host", roles))
        selector = "app.kubernetes.io/instance=host,app.kubernetes.io/component=prefill"
        (pod,) = until("a prefill pod", lambda: operator.pods(host, selector), seconds=60)
        assert (pod["spec"]["hostNetwork"], pod["spec"]["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
        ports = {port["name"]: port["hostPort"] for port in pod["spec"]["containers"][0]["ports"]}
        assert ports == {"http": 30000, "bootstrap": 8998}
        policies = operator.find("networking.k8s.io/v1", "NetworkPolicy", host, "app.kubernetes.io/instance=host")
        assert [policy["metadata"]["name"] for policy in policies] == ["host-router"]
        # The restricted profile forbids the node's network; the refusal is told.
        operator.apply(deployment(namespace, "host", roles))
        until(
            "the refusal to be told",
            lambda: reason(operator, namespace, "host", "PrefillReady") == "Forbidden",
            seconds=60,
        )
    finally:
        operator.delete("v1", "Namespace", None, host)
        operator.delete(API_VERSION, KIND, namespace, "host")

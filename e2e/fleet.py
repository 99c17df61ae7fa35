"""Twenty deployments whose pods are on fake nodes, and what the operator that looks after them takes up."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from e2e.kube import API_VERSION, KIND, Kube, Object, conditions, ready_pods, until
from e2e.samples import sample
from e2e.stack import OPERATOR_NAMESPACE
from epd_operator.api.names import LABEL_INSTANCE, MANAGED_SELECTOR
from tools.cluster import access, kwok

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = 20
POOLED = 1
"""The one that has a pool of windows, of a master and a store."""
PODS = MANY * 4 + 2
FAKE = {"e2e.epd.dev/nodes": "fake"}


def operator_pods(kube: Kube) -> list[Object]:
    """The operator's ready pods."""
    return list(ready_pods(kube.pods(OPERATOR_NAMESPACE, "app.kubernetes.io/name=epd-operator")))


def resident_bytes(kube: Kube, pod: Object) -> float:
    """Resident memory of an operator process, from its own metrics."""
    path = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod['metadata']['name']}:8080/proxy/metrics"
    line = next(line for line in kube.raw(path).splitlines() if line.startswith("process_resident_memory_bytes "))
    return float(line.split()[1])


def now() -> dt.datetime:
    """The time, as the audit log tells it."""
    return dt.datetime.now(dt.UTC)


def onto_fake_nodes(kube: Kube) -> None:
    """Send the pods of namespaces labelled so to nodes without machines."""
    patches = {"/spec/nodeSelector": kwok.NODE_SELECTOR, "/spec/tolerations": [kwok.TOLERATION]}
    operations = (f'JSONPatch{{op: "add", path: "{path}", value: {json.dumps(v)}}}' for path, v in patches.items())
    expression = f"[{', '.join(operations)}]"
    group = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    kube.apply(
        {
            "apiVersion": group,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": "e2e-fake-nodes"},
            "spec": {
                "reinvocationPolicy": "Never",
                "matchConstraints": {"resourceRules": [rule], "namespaceSelector": {"matchLabels": FAKE}},
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
            },
        }
    )
    kube.apply(
        {
            "apiVersion": group,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": "e2e-fake-nodes"},
            "spec": {"policyName": "e2e-fake-nodes"},
        }
    )


def first_child_after(kube: Kube, namespace: str, name: str, applied: float, bound: float) -> float:
    """Seconds from the apply to the first object that the operator made."""
    selector = f"{LABEL_INSTANCE}={name},{MANAGED_SELECTOR}"
    until(
        f"a child of {name}",
        lambda: kube.find("v1", "ServiceAccount", namespace, selector),
        seconds=bound,
        every=0.02,
    )
    return time.monotonic() - applied


@dataclass(frozen=True)
class Fleet:
    """Twenty settled deployments.

    Attributes:
        namespace: Where they are.
        seconds: From each apply to its first child, ascending.
        began: When the first was about to be applied.
        settled: When they were found to be settled.
    """

    namespace: str
    seconds: list[float]
    began: dt.datetime
    settled: dt.datetime


def launch(kube: Kube, new_namespace: Callable[[str], str]) -> Fleet:
    """Apply twenty deployments one after the other and wait until their conditions are what they will be."""
    access.require_throwaway("epd-local" if access.given() is None else "given")
    kwok.add_nodes(2)
    onto_fake_nodes(kube)
    namespace = new_namespace("e2e-many")
    kube.merge("v1", "Namespace", None, namespace, {"metadata": {"labels": FAKE}})
    time.sleep(2)  # admission policies take effect within a second or so, and say nothing when they have
    began, seconds = now(), []
    for index in range(MANY):
        deployment = sample(f"many-{index:02}", namespace)
        if index == POOLED:
            deployment["spec"]["roles"]["prefill"] = {"encoderReplay": True}
            # A short time to live: the condition says for that long that the pool is cold, and then writes again.
            deployment["spec"]["swaPool"] = {"mode": "Mooncake", "memory": "64Mi", "ttl": "10s"}
        applied = time.monotonic()
        kube.apply(deployment)
        seconds.append(first_child_after(kube, namespace, f"many-{index:02}", applied, bound=10))

    def all_running() -> bool:
        phases = Counter(pod["status"].get("phase") for pod in kube.pods(namespace))
        return phases["Running"] == PODS and phases.total() == PODS

    until("the pods of twenty deployments", all_running, seconds=90, every=1)

    def engines_ready() -> bool:
        deployments = kube.find(API_VERSION, KIND, namespace)
        wanted = ("EncodeReady", "PrefillReady", "DecodeReady")
        pool = conditions(deployments[POOLED]).get("SwaPoolReady", {})
        warm = pool.get("status") == "True" and pool.get("reason") != "Warming"
        return warm and all(conditions(d).get(c, {}).get("status") == "True" for d in deployments for c in wanted)

    until("their conditions", engines_ready, seconds=60, every=1)
    return Fleet(namespace, sorted(seconds), began, now())

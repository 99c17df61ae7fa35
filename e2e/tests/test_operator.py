"""The operator as installed: how fast it acts, that it rests when nothing is left to do, that one acts at a time."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import time
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.cluster import access, kwok
from e2e.kube import API_VERSION, KIND, Kube, Object, conditions, ready_pods, until
from e2e.stack import OPERATOR_NAMESPACE
from e2e.tests.conftest import sample

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = 20
QUIET_SECONDS = 120
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
ACCOUNT = f"system:serviceaccount:{OPERATOR_NAMESPACE}:epd-operator"
FAKE = {"e2e.epd.dev/nodes": "fake"}


def operator_pods(kube: Kube) -> list[Object]:
    """The operator's ready pods."""
    return list(ready_pods(kube.pods(OPERATOR_NAMESPACE, "app.kubernetes.io/name=epd-operator")))


def holder(kube: Kube) -> str:
    """The lease holder's identity; it starts with the holder's pod name."""
    lease = kube.get("coordination.k8s.io/v1", "Lease", OPERATOR_NAMESPACE, "epd-operator") or {}
    return str(lease.get("spec", {}).get("holderIdentity") or "")


def writes(*, since: dt.datetime) -> list[Object]:
    """The operator's writes that the API server's audit log has seen, the lease and events left out."""
    log = access.audit_log()
    if log is None:
        pytest.skip("this cluster's audit log cannot be read (only the local cluster's can)")
    found = []
    for line in log.read_text().splitlines():
        record = json.loads(line)
        if record["stage"] != "ResponseComplete" or record["verb"] not in WRITES:
            continue
        at = dt.datetime.fromisoformat(record["requestReceivedTimestamp"])
        resource = record.get("objectRef", {}).get("resource")
        if record["user"].get("username") == ACCOUNT and at >= since and resource not in {"leases", "events"}:
            found.append(record)
    return found


def now() -> dt.datetime:
    """The time, as the audit log tells it."""
    return dt.datetime.now(dt.UTC)


def spelled(records: list[Object]) -> Counter[str]:
    """Writes as a person reads them."""
    return Counter(f"{record['verb']} {record['requestURI'].partition('?')[0]}" for record in records)


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
    selector = f"app.kubernetes.io/instance={name},app.kubernetes.io/managed-by=epd-operator"
    until(
        f"a child of {name}",
        lambda: kube.find("v1", "ServiceAccount", namespace, selector),
        seconds=bound,
        every=0.02,
    )
    return time.monotonic() - applied


@pytest.fixture(scope="module")
def many(operator: Kube, new_namespace: Callable[[str], str]) -> dict[str, Any]:
    """Twenty deployments whose pods are on fake nodes, and how long each took to its first child."""
    access.require_throwaway("epd-local" if access.given() is None else "given")
    kwok.add_nodes(2)
    onto_fake_nodes(operator)
    namespace = new_namespace("e2e-many")
    operator.merge("v1", "Namespace", None, namespace, {"metadata": {"labels": FAKE}})
    time.sleep(2)  # admission policies take effect within a second or so, and say nothing when they have
    seconds = []
    for index in range(MANY):
        applied = time.monotonic()
        operator.apply(sample(f"many-{index:02}", namespace))
        seconds.append(first_child_after(operator, namespace, f"many-{index:02}", applied, bound=10))

    def all_running() -> bool:
        phases = Counter(pod["status"].get("phase") for pod in operator.pods(namespace))
        return phases["Running"] == MANY * 4 and phases.total() == MANY * 4

    until("the pods of twenty deployments", all_running, seconds=90, every=1)

    def engines_ready() -> bool:
        deployments = operator.find(API_VERSION, KIND, namespace)
        wanted = ("EncodeReady", "PrefillReady", "DecodeReady")
        return all(conditions(d).get(c, {}).get("status") == "True" for d in deployments for c in wanted)

    until("their conditions", engines_ready, seconds=60, every=1)
    return {"namespace": namespace, "seconds": sorted(seconds)}


def test_apply_to_first_child_within_a_second(many: dict[str, Any]) -> None:
    p95 = many["seconds"][int(0.95 * MANY) - 1]
    assert p95 <= 1.0, many["seconds"]


def test_memory_with_twenty_deployments(operator: Kube, many: dict[str, Any]) -> None:
    for pod in operator_pods(operator):
        text = operator.raw(
            f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod['metadata']['name']}:8080/proxy/metrics"
        )
        line = next(line for line in text.splitlines() if line.startswith("process_resident_memory_bytes "))
        assert float(line.split()[1]) <= 150 * 2**20, line


def test_no_write_at_rest(operator: Kube, many: dict[str, Any]) -> None:
    since = now()
    time.sleep(QUIET_SECONDS)
    assert not spelled(writes(since=since))


def test_a_restart_writes_nothing_and_restarts_nothing(operator: Kube, many: dict[str, Any]) -> None:
    before = {pod["metadata"]["uid"] for pod in operator.pods(many["namespace"])}
    since = now()
    old = {pod["metadata"]["name"] for pod in operator_pods(operator)}
    for name in old:
        operator.delete("v1", "Pod", OPERATOR_NAMESPACE, name)

    def replaced() -> bool:
        names = {pod["metadata"]["name"] for pod in operator_pods(operator)}
        leader = holder(operator)
        return len(names) == 2 and not names & old and any(leader.startswith(name) for name in names)

    until("two new operator pods, one of them leading", replaced, seconds=90)
    time.sleep(15)  # long enough for a first pass over everything
    assert not spelled(writes(since=since))
    assert {pod["metadata"]["uid"] for pod in operator.pods(many["namespace"])} == before


def processes_of(pod: str) -> list[int]:
    """The processes of a pod that are visible on this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"POD_NAME={pod}".encode() in environment:
                found.append(int(entry.name))
    return found


def test_leader_killed(operator: Kube, many: dict[str, Any]) -> None:
    since = now()
    first = holder(operator)
    leader = next(p["metadata"]["name"] for p in operator_pods(operator) if first.startswith(p["metadata"]["name"]))
    victims = processes_of(leader)
    if not victims:
        pytest.skip("this cluster's pods are not processes of this machine: their leader cannot be killed from here")
    namespace = many["namespace"]
    for process in victims:
        os.kill(process, signal.SIGKILL)
    killed = time.monotonic()
    operator.delete("v1", "Service", namespace, "many-00")
    until(
        "the deleted Service, back",
        lambda: operator.get("v1", "Service", namespace, "many-00"),
        seconds=20,
    )
    assert time.monotonic() - killed <= 20
    assert holder(operator) != first
    identities = [record["userAgent"] for record in writes(since=since)]
    blocks = [identity for identity, _ in groupby(identities)]
    assert len(blocks) == len(set(blocks)), f"writers took turns: {blocks}"
    assert all("epd-operator/" in identity for identity in blocks)
    until("two operator pods again", lambda: len(operator_pods(operator)) == 2, seconds=60)

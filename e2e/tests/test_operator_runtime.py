"""The operator's process against a real API server: its permissions, its leadership, and what it does under trouble.

These tests run `epd run` on this machine, as a service account that holds exactly the rights of
`epd_operator.runtime.permissions`, with a lease of its own and one watched namespace. Pods need not run for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.kube import Kube, Object, conditions, until
from e2e.stack import OPERATOR_NAMESPACE
from epd_operator.api.crd import crd
from epd_operator.api.names import API_VERSION, KIND, MANAGED_SELECTOR
from epd_operator.runtime.permissions import PERMISSIONS, Permission
from tools.cluster import access

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ACCOUNT = "runtime"
RBAC = "rbac.authorization.k8s.io/v1"


@dataclass
class Process:
    """One `epd run` on this machine."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ports: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[Object]:
        """What it has logged so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def logged(self, message: str) -> Object | None:
        """The last line with this message."""
        return next((line for line in reversed(self.lines()) if line["message"] == message), None)

    def wait_for(self, message: str, seconds: float) -> Object:
        """Wait for a log line."""
        actual: Object = until(f"{self.name} to say {message!r}", lambda: self.logged(message), seconds=seconds)
        return actual

    def get(self, port: str, path: str) -> str:
        """GET from one of its ports, whatever the status."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}{path}", timeout=5) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            return str(error.read().decode())

    def metric(self, name: str) -> float:
        """Sum over a metric's series; `name` may end inside the labels."""
        lines = self.get("metrics", "/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def kill(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)


@pytest.fixture(scope="module")
def api(able: None) -> Kube:
    """The API server; nothing else of the stack is needed here."""
    if access.given() is None:
        subprocess.run([sys.executable, "-m", "tools.cluster", "up"], check=True)
    kube = Kube(access.kubeconfig())
    if kube.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, crd()["metadata"]["name"]) is None:
        kube.apply(crd())
        until("the CRD", lambda: kube.raw(f"/apis/{API_VERSION}"), seconds=20)
        kube = Kube(access.kubeconfig())
    return kube


@pytest.fixture(scope="module")
def alone(api: Kube) -> Iterator[None]:
    """The installed operator, if there is one, rests meanwhile: it would act on our deployments too."""
    installed = api.get("apps/v1", "Deployment", OPERATOR_NAMESPACE, "epd-operator")
    if installed is None:
        yield
        return
    place = ("apps/v1", "Deployment", OPERATOR_NAMESPACE, "epd-operator")
    api.merge(*place, {"spec": {"replicas": 0}})
    selector = "app.kubernetes.io/name=epd-operator"
    until("the installed operator to end", lambda: not api.pods(OPERATOR_NAMESPACE, selector), seconds=60)
    yield
    api.merge(*place, {"spec": {"replicas": installed["spec"]["replicas"]}})
    until("the installed operator to be back", lambda: _available(api.get(*place)), seconds=90)


def _available(deployment: Object | None) -> bool:
    status = (deployment or {}).get("status") or {}
    return bool(status.get("availableReplicas")) and not status.get("unavailableReplicas")


def _rules(scope: str) -> list[Object]:
    def rule(permission: Permission) -> Object:
        names = {"resourceNames": list(permission.names)} if permission.names else {}
        return {
            "apiGroups": [permission.group],
            "resources": list(permission.resources),
            "verbs": list(permission.verbs),
            **names,
        }

    return [rule(permission) for permission in PERMISSIONS if permission.scope == scope]


@pytest.fixture(scope="module")
def namespace(api: Kube, alone: None) -> Iterator[str]:
    """A namespace with the operator's service account and exactly its permissions."""
    name = f"e2e-runtime-{os.getpid()}"
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": name}})
    for scope in ("watched", "own"):
        metadata = {"name": f"{ACCOUNT}-{scope}", "namespace": name}
        api.apply({"apiVersion": RBAC, "kind": "Role", "metadata": metadata, "rules": _rules(scope)})
        api.apply(
            {
                "apiVersion": RBAC,
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": RBAC.partition("/")[0], "kind": "Role", "name": metadata["name"]},
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": name}],
            }
        )
    yield name
    api.delete("v1", "Namespace", None, name)


@pytest.fixture(scope="module")
def credentials(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubeconfig with a token of the service account and nothing else."""
    path: Path = tmp_path_factory.mktemp("credentials") / "kubeconfig"
    write_credentials(namespace, path)
    return path


def write_credentials(namespace: str, path: Path) -> None:
    """Write the kubeconfig with a new token."""
    token = subprocess.run(
        [*access.kubectl(), "create", "token", ACCOUNT, "-n", namespace, "--duration=1h"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    config = yaml.safe_load(access.kubeconfig().read_text())
    for cluster in config["clusters"]:
        authority = cluster["cluster"].get("certificate-authority")
        if authority:
            cluster["cluster"]["certificate-authority"] = str((access.kubeconfig().parent / authority).resolve())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)


@pytest.fixture(scope="module")
def start(
    namespace: str, credentials: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Process]]:
    """Starts operators; those still running in the end are told to leave."""
    started: list[Process] = []
    folder = tmp_path_factory.mktemp("logs")

    def run(name: str) -> Process:
        environ = {
            **os.environ,
            "EPD_WATCH_NAMESPACE": namespace,
            "POD_NAMESPACE": namespace,
            "POD_NAME": name,
            "EPD_METRICS_PORT": "0",
            "EPD_PROBES_PORT": "0",
        }
        log = folder / f"{name}.log"
        command = [sys.executable, "-m", "epd_operator.cli.main", "run", "--kubeconfig", str(credentials)]
        with log.open("wb") as out:
            popen = subprocess.Popen([*command, "--log-format", "json"], env=environ, stderr=out, stdout=out)
        process = Process(name, popen, log)
        started.append(process)
        line = process.wait_for("started", seconds=40)
        process.ports = {"probes": line["probes"], "metrics": line["metrics"]}
        return process

    yield run
    for process in started:
        if process.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill(signal.SIGCONT)
                process.kill(signal.SIGTERM)
            process.process.wait(30)


@pytest.fixture(scope="module")
def leader(start: Callable[[str], Process]) -> Process:
    """An operator that leads."""
    process = start("first")
    process.wait_for("leading", seconds=20)
    return process


def deployment(namespace: str, name: str, **spec: Any) -> Object:
    """A deployment with no pods: everything but their running can be seen."""
    roles = {role: {"replicas": 0} for role in ("encode", "prefill", "decode")}
    engine = {"type": "Reference", "version": "0.1"}
    body = {"engine": engine, "roles": roles, "router": {"replicas": 0}, **spec}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name, "namespace": namespace}, "spec": body}


def children(api: Kube, namespace: str, name: str) -> dict[str, Object]:
    """The children of a deployment, by `Kind/name`."""
    groups = {
        "v1": ("Service", "ServiceAccount"),
        "apps/v1": ("Deployment", "ControllerRevision"),
        "policy/v1": ("PodDisruptionBudget",),
        "networking.k8s.io/v1": ("NetworkPolicy",),
        RBAC: ("Role", "RoleBinding"),
    }
    selector = f"{MANAGED_SELECTOR},app.kubernetes.io/instance={name}"
    return {
        f"{kind}/{obj['metadata']['name']}": obj
        for group, kinds in groups.items()
        for kind in kinds
        for obj in api.find(group, kind, namespace, selector)
    }


def settled(api: Kube, namespace: str, name: str) -> dict[str, Object]:
    """Wait until the operator has done all that it can, and return the children."""

    def seen() -> bool:
        live = api.deployment(namespace, name) or {}
        return bool(live.get("status", {}).get("observedGeneration") == live["metadata"]["generation"])

    until(f"{name} to be seen", seen, seconds=20)
    return children(api, namespace, name)


@pytest.fixture(scope="module")
def demo(api: Kube, namespace: str, leader: Process) -> dict[str, Object]:
    """The children of one settled deployment."""
    api.apply(deployment(namespace, "demo"))
    return settled(api, namespace, "demo")


def test_everything_is_made_under_exactly_these_permissions(demo: dict[str, Object], leader: Process) -> None:
    kinds = {name.partition("/")[0] for name in demo}
    assert kinds == {
        "ControllerRevision",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    }
    assert leader.metric('rest_client_requests_total{code="403"') == 0
    assert leader.get("probes", "/healthz") == "ok"
    assert leader.get("probes", "/readyz") == "ok"


def test_nothing_is_written_on_the_custom_resource_but_status(
    api: Kube, namespace: str, demo: dict[str, Object]
) -> None:
    live = api.deployment(namespace, "demo")
    assert live is not None
    assert not live["metadata"].get("finalizers")
    assert not live["metadata"].get("annotations")
    managers = {entry["manager"]: entry.get("subresource", "") for entry in live["metadata"]["managedFields"]}
    assert managers == {api.manager: "", "epd-operator-status": "status"}


def writes(process: Process) -> float:
    """Writes to the API server so far, those on the lease left out."""
    return process.metric("epd_apply_total") + process.metric(
        'rest_client_requests_total{code="200",host="kubernetes",method="PATCH"'
    )


def test_at_rest_nothing_is_written(demo: dict[str, Object], leader: Process) -> None:
    until("rest", lambda: leader.metric("workqueue_depth") == 0, seconds=10)
    time.sleep(1)
    before = writes(leader)
    time.sleep(10)
    assert writes(leader) == before


def test_ours_stripped_of_label_or_owner_is_taken_back(api: Kube, namespace: str, demo: dict[str, Object]) -> None:
    uid = demo["Service/demo"]["metadata"]["uid"]
    api.merge("v1", "Service", namespace, "demo", {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}})
    until("the label", lambda: "Service/demo" in children(api, namespace, "demo"), seconds=10)
    api.merge("v1", "Service", namespace, "demo", {"metadata": {"ownerReferences": None}})

    def owned() -> bool:
        live = api.get("v1", "Service", namespace, "demo") or {}
        return bool(live["metadata"].get("ownerReferences"))

    until("the owner", owned, seconds=10)
    live = api.get("v1", "Service", namespace, "demo")
    assert live is not None
    assert live["metadata"]["uid"] == uid


def test_a_field_that_others_add_stays_and_ours_comes_back(api: Kube, namespace: str, demo: dict[str, Object]) -> None:
    patch = {"metadata": {"annotations": {"somebody": "was here"}}, "spec": {"ports": [{"port": 9999, "name": "http"}]}}
    api.merge("v1", "Service", namespace, "demo", patch)

    def healed() -> bool:
        live = api.get("v1", "Service", namespace, "demo") or {}
        return [port["port"] for port in live["spec"]["ports"]].count(8000) == 1

    until("the port", healed, seconds=10)
    live = api.get("v1", "Service", namespace, "demo")
    assert live is not None
    assert live["metadata"]["annotations"]["somebody"] == "was here"


def test_a_status_edited_by_hand_comes_back(namespace: str, api: Kube, demo: dict[str, Object]) -> None:
    patch = json.dumps({"status": {"conditions": []}})
    command = ["patch", f"{KIND.lower()}s.serving.epd.dev", "demo", "-n", namespace, "--subresource=status"]
    subprocess.run([*access.kubectl(), *command, "--type=merge", "-p", patch], check=True, capture_output=True)
    until("the conditions", lambda: "Ready" in conditions(api.deployment(namespace, "demo")), seconds=10)


def test_a_quota_is_reported_does_not_stop_the_rest_and_a_new_wish_is_acted_on_at_once(
    api: Kube, namespace: str, leader: Process, demo: dict[str, Object]
) -> None:
    held = len(api.find("v1", "Service", namespace))
    metadata = {"name": "no-more-services", "namespace": namespace}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": {"services": str(held)}},
    }
    api.apply(quota)
    until(
        "the quota to be counted",
        lambda: (api.get("v1", "ResourceQuota", namespace, "no-more-services") or {}).get("status", {}).get("used"),
        seconds=20,
    )
    api.apply(deployment(namespace, "held"))

    def reported() -> bool:
        actual = conditions(api.deployment(namespace, "held"))
        return any("exceeded quota" in str(condition.get("message")) for condition in actual.values())

    until("the quota in a condition", reported, seconds=20)
    made = children(api, namespace, "held")
    assert not any(name.startswith("Service/") for name in made)
    assert any(name.startswith("Deployment/") for name in made)
    before = leader.metric("controller_runtime_reconcile_errors_total")
    time.sleep(8)
    assert leader.metric("controller_runtime_reconcile_errors_total") - before <= 20  # backed off, no hot loop
    api.delete("v1", "ResourceQuota", namespace, "no-more-services")
    api.apply(deployment(namespace, "held", networkPolicy={"enabled": False}))
    until("the services", lambda: "Service/held" in children(api, namespace, "held"), seconds=6)
    until(
        "no policies",
        lambda: not any(n.startswith("NetworkPolicy/") for n in children(api, namespace, "held")),
        seconds=6,
    )


def test_a_namesake_of_a_deleted_deployment_starts_afresh(api: Kube, namespace: str, leader: Process) -> None:
    api.apply(deployment(namespace, "again"))
    first = settled(api, namespace, "again")
    api.delete(API_VERSION, KIND, namespace, "again")
    until("it to be gone", lambda: api.deployment(namespace, "again") is None, seconds=20)
    api.apply(deployment(namespace, "again"))

    def replaced() -> bool:
        owner = (api.deployment(namespace, "again") or {})["metadata"]["uid"]
        now = children(api, namespace, "again")
        owners = {obj["metadata"]["ownerReferences"][0]["uid"] for obj in now.values()}
        return set(now) == set(first) and owners == {owner}

    until("children of the namesake", replaced, seconds=60)


@pytest.fixture(scope="module")
def standby(start: Callable[[str], Process], leader: Process) -> Process:
    """A second operator beside the leader."""
    process = start("second")
    process.wait_for("standing by", seconds=20)
    return process


def test_a_standby_is_alive_ready_and_idle(leader: Process, standby: Process) -> None:
    assert standby.get("probes", "/healthz") == "ok"
    assert standby.get("probes", "/readyz") == "ok"
    assert standby.metric("leader_election_master_status") == 0
    assert leader.metric("leader_election_master_status") == 1
    assert standby.metric('rest_client_requests_total{code="200",host="kubernetes",method="P') == 0


def test_a_frozen_leader_is_replaced_and_never_writes_again(
    api: Kube, namespace: str, demo: dict[str, Object], leader: Process, standby: Process
) -> None:
    frozen = time.monotonic()
    leader.kill(signal.SIGSTOP)
    api.delete("v1", "Service", namespace, "demo")
    until("the child", lambda: api.get("v1", "Service", namespace, "demo"), seconds=20)
    assert time.monotonic() - frozen <= 20
    assert standby.logged("leading")
    done = len(leader.lines())
    api.delete("policy/v1", "PodDisruptionBudget", namespace, "demo-decode")
    leader.kill(signal.SIGCONT)
    assert leader.process.wait(10) == 3
    messages = [line["message"] for line in leader.lines()[done:]]
    assert "lease lost: ending at once" in messages
    assert not {"created", "changed", "pruned"} & set(messages)


@pytest.fixture(scope="module")
def third(start: Callable[[str], Process], standby: Process) -> Process:
    """A third operator, beside the second."""
    process = start("third")
    process.wait_for("standing by", seconds=20)
    return process


def test_a_leader_told_to_leave_hands_over_at_once(standby: Process, third: Process) -> None:
    standby.kill(signal.SIGTERM)
    third.wait_for("leading", seconds=4)
    assert standby.process.wait(20) == 0
    until("rest", lambda: third.get("probes", "/readyz") == "ok", seconds=20)
    time.sleep(2)
    assert third.metric("epd_apply_total") == 0
    assert third.metric('rest_client_requests_total{code="403"') == 0


def test_new_credentials_are_picked_up(api: Kube, namespace: str, third: Process, credentials: Path) -> None:
    """A new service account of the same name makes every old token worthless."""
    api.delete("v1", "ServiceAccount", namespace, ACCOUNT)
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": namespace}})
    write_credentials(namespace, credentials)
    until("a refusal", lambda: third.metric('rest_client_requests_total{code="401"') > 0, seconds=30)
    api.delete("v1", "Service", namespace, "demo")
    until("the child", lambda: api.get("v1", "Service", namespace, "demo"), seconds=20)
    assert third.process.poll() is None
    refused = third.metric('rest_client_requests_total{code="401"')
    time.sleep(4)
    assert third.metric('rest_client_requests_total{code="401"') == refused


def test_every_write_was_made_by_the_holder_of_the_lease(namespace: str, standby: Process) -> None:
    log = access.audit_log()
    if log is None:
        pytest.skip("this cluster's audit log cannot be read (only the local cluster's can)")
    user = f"system:serviceaccount:{namespace}:{ACCOUNT}"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    mine = [r for r in records if r["user"].get("username") == user and r["stage"] == "ResponseComplete"]
    mine.sort(key=lambda record: record["requestReceivedTimestamp"])
    holder, written = "", 0
    for record in mine:
        if record["verb"] not in {"create", "update", "patch", "delete"}:
            continue
        agent = record["userAgent"]
        if record["objectRef"]["resource"] == "leases":
            holder = agent if record["responseStatus"]["code"] < 300 else holder
            continue
        assert agent == holder, record
        written += 1
    assert written > 20

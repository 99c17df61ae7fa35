"""A cluster small enough to read: it stores what a plan asks for, and pods become ready when a test says so."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from epd_operator.plan import Observed, Plan, Settings, plan

COMPONENT = "app.kubernetes.io/component"
REVISION = "serving.epd.dev/revision"
KEY = "serving.epd.dev/compat-key"
ROLE = "serving.epd.dev/role"
MAKERS = ("Deployment", "LeaderWorkerSet")
PARTS = ("encode", "prefill", "decode", "router", "swa-pool", "swa-pool-store")
REPLAY = {
    "decoder": {"active": True, "reason": "", "preset": "0.5.23", "rowsRun": 640, "rowsSkipped": 384},
    "encoder": {"active": False, "reason": "TurnedOff", "rowsReplayed": 0},
}
SETTINGS = Settings(router_image="registry/epd-router:1", worker_image="registry/epd-worker:1", version="0.1.0")


def resource(**spec: Any) -> dict[str, Any]:
    """A small resource; `spec` replaces whole parts of its spec."""
    return {
        "apiVersion": "serving.epd.dev/v1alpha1",
        "kind": "DeepSeekV41Deployment",
        "metadata": {"name": "demo", "namespace": "llm", "uid": "uid-of-demo", "generation": 1},
        "spec": {
            "engine": {"type": "Reference", "version": "0.1"},
            "roles": {"encode": {}, "prefill": {}, "decode": {}},
            **spec,
        },
    }


def templates_of(maker: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of a Deployment or LeaderWorkerSet, the leader's first."""
    if maker["kind"] == "Deployment":
        return [maker["spec"]["template"]]
    group = maker["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


class World:
    """One resource and the cluster around it; time moves by a second with every reconcile."""

    def __init__(self, cr: dict[str, Any] | None = None, settings: Settings = SETTINGS) -> None:
        self.cr = copy.deepcopy(cr) if cr is not None else resource()
        self.settings = settings
        self.children: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.routers: list[dict[str, Any]] = []
        self.conflicts: list[str] = []
        self.failures: list[str] = []
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.serial = 0

    @property
    def spec(self) -> dict[str, Any]:
        actual: dict[str, Any] = self.cr["spec"]
        return actual

    def observed(self) -> Observed:
        return Observed(
            children=tuple(self.children.values()),
            pods=tuple(self.pods),
            routers=tuple(self.routers),
            conflicts=tuple(self.conflicts),
            failures=tuple(self.failures),
            now=self.now,
        )

    def plan(self) -> Plan:
        return plan(self.cr, self.observed(), self.settings)

    def edit(self, **spec: Any) -> World:
        self.cr["spec"] = {**copy.deepcopy(self.spec), **spec}
        self.cr["metadata"]["generation"] += 1
        return self

    def role(self, name: str, **fields: Any) -> World:
        roles = copy.deepcopy(self.spec["roles"])
        roles[name] = {**roles.get(name, {}), **fields}
        return self.edit(roles=roles)

    def reconcile(self) -> Plan:
        self.now += timedelta(seconds=1)
        decided = self.plan()
        for obj in decided.objects:
            self._store(obj)
        for ref in decided.prune:
            del self.children[ref.kind, ref.name]
        self.cr["status"] = copy.deepcopy(decided.status)
        return decided

    def _store(self, obj: dict[str, Any]) -> None:
        stored = copy.deepcopy(obj)
        live = self.children.get((obj["kind"], obj["metadata"]["name"]))
        self.serial += 1
        uid = live["metadata"]["uid"] if live else f"uid-{self.serial}"
        generation = live["metadata"]["generation"] if live else 0
        changed = live is None or live.get("spec") != obj.get("spec")
        stored["metadata"] |= {"uid": uid, "generation": generation + changed}
        if live and "status" in live:
            stored["status"] = live["status"]
        self.children[obj["kind"], obj["metadata"]["name"]] = stored

    def makers(self, part: str) -> list[dict[str, Any]]:
        actual = [c for (kind, _), c in sorted(self.children.items()) if kind in MAKERS]
        return [d for d in actual if d["metadata"]["labels"][COMPONENT] == part]

    def maker(self, part: str) -> dict[str, Any]:
        """What makes the pods of a part at the revision that the plan wants."""
        wanted = {o["metadata"]["name"] for o in self.plan().objects if o["kind"] in MAKERS}
        return next(d for d in self.makers(part) if d["metadata"]["name"] in wanted)

    def set_ready(self, maker: dict[str, Any], ready: int | None = None) -> None:
        """Give a Deployment its pods, or a LeaderWorkerSet its groups, of which `ready` (default all) are Ready."""
        desired = maker["spec"]["replicas"]
        ready = desired if ready is None else ready
        single = maker["kind"] == "Deployment"
        complete = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
        if not single:
            complete = {"type": "Available", "status": "True", "reason": "AllGroupsReady"}
        before = maker.get("status", {}).get("conditions", [])
        maker["status"] = {
            **({"observedGeneration": maker["metadata"]["generation"]} if single else {"hpaPodSelector": "a=b"}),
            "replicas": desired,
            "updatedReplicas": desired,
            "readyReplicas": ready,
            "conditions": [complete] if ready == desired else before,
        }
        name = maker["metadata"]["name"]
        self.pods = [pod for pod in self.pods if not pod["metadata"]["name"].startswith(f"{name}-")]
        for index in range(desired):
            leader, *followers = templates_of(maker)
            self.pods.append(self._pod(leader, f"{name}-{index}", is_ready=index < ready))
            for template in followers:
                self.pods.append(self._pod(template, f"{name}-{index}-1", is_ready=index < ready))

    def _pod(self, template: dict[str, Any], name: str, *, is_ready: bool) -> dict[str, Any]:
        running = {"running": {"startedAt": self.now.strftime("%Y-%m-%dT%H:%M:%SZ")}}
        containers = [
            {"name": container["name"], "ready": is_ready, "restartCount": 0, "state": running}
            for container in template["spec"]["containers"]
        ]
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "containerStatuses": containers,
        }
        labels = template["metadata"]["labels"]
        return {"kind": "Pod", "metadata": {"name": name, "labels": dict(labels)}, "status": status}

    def pod(self, part: str) -> dict[str, Any]:
        return next(pod for pod in self.pods if pod["metadata"]["labels"][COMPONENT] == part)

    def report(self) -> None:
        """Make one registrar see exactly the ready pods, all of them routable."""
        workers, encoders = [], []
        for pod in self.pods:
            labels, name = pod["metadata"]["labels"], pod["metadata"]["name"]
            if pod["status"]["conditions"][0]["status"] != "True" or ROLE not in labels:
                continue
            shared = {"pod": name, "compatKey": labels[KEY], "url": f"http://{name}:30000"}
            if labels[COMPONENT] == "encode":
                encoders.append({**shared, "registeredWith": [], "missing": []})
            else:
                seen = {"role": labels[COMPONENT], "revision": labels[REVISION], "registered": True, "routable": True}
                replay = copy.deepcopy(REPLAY) if labels[COMPONENT] == "prefill" else None
                workers.append({**shared, **seen, "state": "ready", "inFlight": 0, "reason": "", "replay": replay})
        keys: dict[str, dict[str, Any]] = {}
        for worker in workers:
            entry = keys.setdefault(worker["compatKey"], {"prefill": 0, "decode": 0})
            entry[worker["role"]] += 1
        for entry in keys.values():
            entry["routable"] = bool(entry["prefill"] and entry["decode"])
        router = {"ready": True, "version": "smg 1.13.0"}
        self.routers = [
            {"schema": 1, "pod": "r", "compatKeys": keys, "router": router, "workers": workers, "encoders": encoders}
        ]

    def settle(self) -> World:
        """Bring everything that the plan wants to be ready and routable, and reconcile until nothing is left."""
        self.reconcile()
        for part in PARTS:
            for maker in self.makers(part):
                self.set_ready(maker)
        self.report()
        self.reconcile()
        names = tuple(f"{name}-" for kind, name in self.children if kind in MAKERS)
        self.pods = [pod for pod in self.pods if pod["metadata"]["name"].startswith(names)]
        self.report()
        self.reconcile()
        return self

    def condition(self, kind: str) -> dict[str, Any]:
        conditions = {c["type"]: c for c in self.cr["status"]["conditions"]}
        actual: dict[str, Any] = conditions[kind]
        return actual

    def verdict(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition after a reconcile."""
        self.reconcile()
        actual = self.condition(kind)
        return actual["status"], actual["reason"]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def make_world() -> type[World]:
    return World


@pytest.fixture(scope="session")
def make_resource() -> Any:
    return resource

"""A cluster small enough to read: it stores what a plan asks for, and pods become ready when a test says so."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol

from epd_operator.api.names import (
    API_VERSION,
    COMPONENTS,
    HTTP_PORT,
    KIND,
    LABEL_COMPONENT,
    SWA_POOL,
    SWA_POOL_STORE,
)
from epd_operator.plan import Observed, Plan, Settings, plan
from epd_workers.registrar import server_info, state
from epd_workers.registrar.membership import ROUTED_ROLES, Worker
from epd_workers.registrar.pod import pod_of

if TYPE_CHECKING:
    from epd_workers.registrar.pod import Pod

MAKERS = ("Deployment", "LeaderWorkerSet")
PARTS = (*COMPONENTS, SWA_POOL, SWA_POOL_STORE)
SERVER_INFO = {
    "replay": {
        "decoder": {"active": True, "reason": "", "preset": "0.5.23", "rows_run": 640, "rows_skipped": 384},
        "encoder": {"active": False, "reason": "TurnedOff", "rows_replayed": 0},
    }
}
"""What a prefill pod says of itself that has no pool of windows."""
SETTINGS = Settings(router_image="registry/epd-router:1", worker_image="registry/epd-worker:1", version="0.1.0")
Object = dict[str, Any]


class MakeResource(Protocol):
    """Makes a small resource; `spec` replaces whole parts of its spec."""

    def __call__(self, **spec: Any) -> Object: ...


def resource(**spec: Any) -> Object:
    """A small resource; `spec` replaces whole parts of its spec."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "demo", "namespace": "llm", "uid": "uid-of-demo", "generation": 1},
        "spec": {
            "engine": {"type": "Reference", "version": "0.1"},
            "roles": {"encode": {}, "prefill": {}, "decode": {}},
            **spec,
        },
    }


def templates_of(maker: Object) -> list[Object]:
    """The pod templates of a Deployment or LeaderWorkerSet, the leader's first."""
    if maker["kind"] == "Deployment":
        return [maker["spec"]["template"]]
    group = maker["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


def _registered(pod: Pod) -> Worker:
    """A pod as the router lists it once it is registered."""
    return Worker(
        id=pod.uid,
        url=pod.url(HTTP_PORT),
        role=pod.role,
        key=pod.key,
        pod_uid=pod.uid,
        image=pod.image,
        status="ready",
        load=0,
    )


class World:
    """One resource and the cluster around it; time moves by a second with every reconcile."""

    def __init__(self, cr: Object | None = None, settings: Settings = SETTINGS) -> None:
        self.cr = copy.deepcopy(cr) if cr is not None else resource()
        self.settings = settings
        self.children: dict[tuple[str, str], Object] = {}
        self.pods: list[Object] = []
        self.routers: list[Object] = []
        self.conflicts: list[str] = []
        self.failures: list[str] = []
        self.server_info: Object = copy.deepcopy(SERVER_INFO)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.serial = 0

    @property
    def spec(self) -> Object:
        actual: Object = self.cr["spec"]
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

    def _store(self, obj: Object) -> None:
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

    def makers(self, part: str) -> list[Object]:
        actual = [c for (kind, _), c in sorted(self.children.items()) if kind in MAKERS]
        return [d for d in actual if d["metadata"]["labels"][LABEL_COMPONENT] == part]

    def maker(self, part: str) -> Object:
        """What makes the pods of a part at the revision that the plan wants."""
        wanted = {o["metadata"]["name"] for o in self.plan().objects if o["kind"] in MAKERS}
        return next(d for d in self.makers(part) if d["metadata"]["name"] in wanted)

    def set_ready(self, maker: Object, ready: int | None = None) -> None:
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

    def _pod(self, template: Object, name: str, *, is_ready: bool) -> Object:
        self.serial += 1
        started = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        spec = template["spec"]
        containers = [
            {
                "name": container["name"],
                "imageID": f"{container['image']}@sha256:a",
                "ready": is_ready,
                "restartCount": 0,
                "state": {"running": {"startedAt": started}},
            }
            for container in spec["containers"]
        ]
        status = {
            "phase": "Running",
            "podIP": str(ip_address("10.0.0.0") + self.serial),
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "containerStatuses": containers,
        }
        metadata = {
            "name": name,
            "uid": f"uid-{self.serial}",
            "labels": dict(template["metadata"]["labels"]),
            "creationTimestamp": started,
        }
        return {"kind": "Pod", "metadata": metadata, "spec": copy.deepcopy(spec), "status": status}

    def pod(self, part: str) -> Object:
        return next(pod for pod in self.pods if pod["metadata"]["labels"][LABEL_COMPONENT] == part)

    def report(self) -> None:
        """Make one registrar see exactly the ready pods, all of them routable, in the registrar's own words."""
        pods = [seen for pod in self.pods if (seen := pod_of(pod, HTTP_PORT)) is not None and seen.ready]
        encoders = [pod.url(HTTP_PORT) for pod in pods if pod.role == "encode"]
        view = state.View(
            pods=pods,
            workers=[_registered(pod) for pod in pods if pod.role in ROUTED_ROLES],
            directories={pod.uid: encoders for pod in pods if pod.role == "prefill"},
            router_ready=True,
        )
        info = server_info.parse(self.server_info)
        reports = {pod.uid: info for pod in pods if pod.role == "prefill"}
        self.routers = [
            state.document(view, pod="r", version="smg 1.13.0", engine_port=HTTP_PORT, reports=reports),
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

    def condition(self, kind: str) -> Object:
        conditions = {c["type"]: c for c in self.cr["status"]["conditions"]}
        actual: Object = conditions[kind]
        return actual

    def verdict(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition after a reconcile."""
        self.reconcile()
        actual = self.condition(kind)
        return actual["status"], actual["reason"]

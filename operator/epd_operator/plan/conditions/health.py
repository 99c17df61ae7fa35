"""How one part (a role or the router) compares with what the spec asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from epd_operator.api import names
from epd_operator.plan.conditions.diagnosis import diagnose, is_ready, one_line, unmounted
from epd_operator.plan.conditions.reason import Reason
from epd_operator.plan.conditions.refusal import refused_pods
from epd_operator.plan.observation import labels, name_of, workloads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.plan.observation import Object, Observed
    from epd_operator.plan.router_state import RouterState

_NONE: Final = {
    "encode": "spec asks for no encode pod: requests with images are answered 503 until it does",
    **{part: f"spec asks for no {part} pod: no request can be answered" for part in ("prefill", "decode", "router")},
}


@dataclass(frozen=True)
class Assessment:
    """Status, reason and message of one condition; time and generation are added when it is written.

    Attributes:
        status: Whether it holds; None when nobody can tell.
    """

    status: bool | None
    reason: str
    message: str

    @classmethod
    def of(cls, condition: Mapping[str, Any]) -> Assessment:
        """The assessment that a condition was written from."""
        status = {"True": True, "False": False}.get(str(condition.get("status")))
        return cls(status, str(condition.get("reason", "")), str(condition.get("message", "")))

    @property
    def status_text(self) -> str:
        """The status as a condition spells it."""
        return "Unknown" if self.status is None else str(self.status)


@dataclass(frozen=True)
class Target:
    """What a part should be.

    Attributes:
        part: A role, or `router`.
        kind: Kind of the object that makes its pods.
        name: Name of that object.
        desired: Pods it should have, or groups of pods where an engine spans several.
        revision: 8 hex digits that the object and its pods are labelled with.
    """

    part: str
    kind: str
    name: str
    desired: int
    revision: str


@dataclass(frozen=True)
class Health:
    """The state of a part.

    Attributes:
        target: What it should be.
        ready: Ready pods of every revision, as they all serve.
        updated: Ready pods of the target's revision.
        assessment: Whether the part is at its desired count and revision, and else why not.
    """

    target: Target
    ready: int
    updated: int
    assessment: Assessment


def measure(target: Target, observed: Observed) -> Health:
    """Compare a part with its target."""
    makers = [maker for maker in workloads(observed.children) if component_of(maker) == target.part]
    live = next((m for m in makers if (m["kind"], name_of(m)) == (target.kind, target.name)), None)
    ready = sum(_count(maker, "readyReplicas") for maker in makers)
    current = live is not None and labels(live).get(names.LABEL_REVISION) == target.revision
    updated = _updated(live) if live and current else 0
    return Health(target, ready, updated, _assess(target, live, observed))


def live_targets(observed: Observed, status: Mapping[str, Any]) -> dict[str, Target]:
    """Targets read back from live objects, for a spec that cannot be planned.

    Of several revisions of a role the one that the last status calls desired counts, else the first by name.
    """
    targets: dict[str, Target] = {}
    for part in names.COMPONENTS:
        makers = [maker for maker in workloads(observed.children) if component_of(maker) == part]
        wanted = (status.get("roles") or {}).get(part, {}).get("revision")
        makers.sort(key=lambda maker: labels(maker).get(names.LABEL_REVISION) != wanted)
        if makers:
            chosen = makers[0]
            desired = int(chosen.get("spec", {}).get("replicas", 1))
            revision = labels(chosen).get(names.LABEL_REVISION, "")
            targets[part] = Target(part, chosen["kind"], name_of(chosen), desired, revision)
    return targets


def component_of(obj: Object) -> str:
    """Which part an object belongs to; empty when it belongs to none."""
    return labels(obj).get(names.LABEL_COMPONENT, "")


def _count(maker: Object, field: str) -> int:
    return int((maker.get("status") or {}).get(field) or 0)


def _updated(maker: Object) -> int:
    """Ready pods of the current template; with both templates' pods about, the old ones are taken to be ready."""
    return max(0, min(_count(maker, "updatedReplicas"), _count(maker, "readyReplicas") - _old(maker)))


def _old(maker: Object) -> int:
    return max(0, _count(maker, "replicas") - _count(maker, "updatedReplicas"))


def _assess(target: Target, live: Object | None, observed: Observed) -> Assessment:
    if live is None:
        return Assessment(False, Reason.CREATING, f"{target.kind} {target.name} does not exist yet")
    progress = f"{_updated(live)}/{target.desired} ready at revision {target.revision}"
    refusal = refused_pods(live)
    if refusal is not None:
        return Assessment(False, refusal.reason, f"{progress}; {refusal.message}")
    if not _as_specified(target, live):
        changing = f"{target.kind} {target.name} is being changed"
        if live["kind"] != "Deployment" and not live.get("status"):
            seen = f"{target.kind} {target.name} has not been seen by a controller yet"
            changing = f"{seen}; does the LeaderWorkerSet controller run?"
        return Assessment(False, Reason.SCALING, f"{progress}; {changing}")
    pods = [p for p in observed.pods if component_of(p) == target.part and _revision(p) == target.revision]
    if not _complete(target, live):
        diagnosis = diagnose(pods)
        if diagnosis is not None:
            return Assessment(False, diagnosis.reason, f"{progress}; {diagnosis.message}")
        return Assessment(False, Reason.STARTING, "; ".join([progress, *_waits(live, pods)]))
    complaint = _complaint(pods, observed.router_states)
    return complaint or _at_desired(target, progress)


def _at_desired(target: Target, progress: str) -> Assessment:
    if target.desired == 0:
        return Assessment(True, Reason.SCALED_TO_ZERO, _NONE[target.part])
    return Assessment(True, Reason.AT_DESIRED, progress)


def _waits(live: Object, pods: Sequence[Object]) -> list[str]:
    old = _old(live)
    leaving = [f"{old} pod{'s' * (old > 1)} of an earlier revision not gone yet"] if old else []
    held_up = unmounted(pods, _template(live))
    return [*([held_up] if held_up else []), *leaving]


def _as_specified(target: Target, live: Object) -> bool:
    spec_matches = live.get("spec", {}).get("replicas", 1) == target.desired
    return spec_matches and _seen(live) and labels(live).get(names.LABEL_REVISION) == target.revision


def _seen(live: Object) -> bool:
    """Whether the controller of an object has seen it as it is."""
    if live["kind"] == "Deployment":
        return _count(live, "observedGeneration") >= int(live["metadata"].get("generation") or 0)
    # A LeaderWorkerSet does not say which generation its status is about; this it says from the first look on.
    return bool((live.get("status") or {}).get("hpaPodSelector"))


def _template(maker: Object) -> Mapping[str, Any]:
    spec = maker.get("spec", {})
    return spec.get("template") or spec.get("leaderWorkerTemplate", {}).get("leaderTemplate") or {}


def _complete(target: Target, live: Object) -> bool:
    return all(_count(live, field) == target.desired for field in ("replicas", "readyReplicas", "updatedReplicas"))


def _revision(pod: Object) -> str:
    return labels(pod).get(names.LABEL_REVISION, "")


def _complaint(pods: Sequence[Object], router_states: Sequence[RouterState]) -> Assessment | None:
    """Why registrars do not use pods that are Ready for the kubelet; None also while none has answered."""
    # A pod without this label follows the leader of its group: no registrar looks at it.
    ours = {name_of(pod): labels(pod).get(names.LABEL_ROLE, "") for pod in pods if is_ready(pod)}
    workers = {name for name, part in ours.items() if part in {"prefill", "decode"}}
    refused: set[str] = set()
    unroutable: set[str] = set()
    missing: set[str] = set()
    for state in router_states:
        listed = {worker.pod: worker for worker in state.workers}
        for name in workers:
            worker = listed.get(name)
            if worker is not None and worker.state == "refused":
                refused.add(f"{name}: {worker.reason or 'no reason given'}")
            elif state.router.ready and worker is None:
                unroutable.add(f"{name}: the router does not list it; are its labels as the operator set them?")
            elif state.router.ready and worker is not None and not worker.routable:
                unroutable.add(f"{name} {worker.state}: {worker.reason or 'no reason given'}")
        missing |= {f"{e.pod} with {prefill}" for e in state.encoders if e.pod in ours for prefill in e.missing}
    if refused:
        return Assessment(False, Reason.WORKER_REFUSED, one_line("; ".join(sorted(refused))))
    if unroutable:
        return Assessment(False, Reason.NOT_ROUTABLE, one_line("; ".join(sorted(unroutable))))
    if missing:
        text = f"not registered: {', '.join(sorted(missing))}"
        return Assessment(False, Reason.ENCODER_NOT_REGISTERED, one_line(text))
    return None

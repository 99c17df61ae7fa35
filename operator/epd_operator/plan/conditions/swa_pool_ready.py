"""Whether the pool of windows is as declared: its servers as Kubernetes sees them, its use as prefill pods report it.

The tricky idea: a pool that is ready is not yet of use. A server starts empty, so for as long as a window lasts the
conversations of before are replayed. That is not a fault, and it ends by itself, so the condition is True and says
when it will. A prefill pod reports a fault as of its last request, which may have met the server before this one; so
for a while after a start such reports do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from epd_operator.plan.conditions.diagnosis import is_ready, one_line
from epd_operator.plan.conditions.health import Assessment, component_of
from epd_operator.plan.conditions.reason import FAULTS, Reason
from epd_operator.plan.conditions.refusal import not_ours
from epd_operator.plan.observation import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from epd_operator.plan.conditions.health import Health
    from epd_operator.plan.observation import Object, Observed
    from epd_operator.plan.router_state import RouterState

STALE: Final = timedelta(seconds=630)
"""An idle prefill pod reports its last fault for ten minutes, and it takes up to half a minute to be read."""

_MISCONFIGURED: Final = "Misconfigured"
_CAUSES: Final[Mapping[str, str]] = {
    "Unreachable": "its lookups and windows get no answer that counts: a NetworkPolicy in between, names that do not "
    "resolve, or servers slower than spec.swaPool.deadline",
    "Full": "the pool refuses every window: raise spec.swaPool.memory or stores, or lower its ttl",
    "NoHits": "for an hour windows were stored and looked up, and none was found: turns that come back after "
    "spec.swaPool.ttl, memory for fewer windows than conversations, prompts whose beginnings change from turn to turn, "
    "or in process a router that sends each turn to another pod",
    _MISCONFIGURED: "it cannot follow the file that says where the pool is: its image may be older than the operator",
}
"""Causes of a fault that a prefill pod reports, and what to do."""


@dataclass(frozen=True)
class PoolState:
    """What `SwaPoolReady` is judged on.

    Attributes:
        ttl: How long a window lasts.
        healths: The state of each kind of server, by program; none in process.
        revision: Of the prefill pods that should serve.
        objects: `Kind/name` of each object that it is made of. Engines follow the file and the address of these names,
            even when the operator did not make them.
    """

    ttl: timedelta
    healths: Mapping[str, Health]
    revision: str
    objects: frozenset[str]


@dataclass(frozen=True)
class PoolReadiness:
    """An assessment, and when time alone will change it.

    Attributes:
        assessment: The condition.
        until: When it must be judged again, if nothing happens before; None when never.
    """

    assessment: Assessment
    until: datetime | None = None


def readiness(pool: PoolState, observed: Observed, previous: Mapping[str, Any] | None) -> PoolReadiness:
    """Judge a pool.

    Args:
        pool: Its state.
        observed: The cluster.
        previous: The condition as it stands. What prefill pods reported is kept until a registrar that answers has
            asked all of them again.
    """
    behind = _behind(pool, observed)
    if behind is not None:
        return PoolReadiness(behind)
    started = max(_starts(pool, observed.pods), default=None)
    reports = _faults(observed.router_states, pool.revision)
    faults = {pod: fault for pod, fault in reports.items() if fault}
    trusted_at = None if started is None or observed.now >= started[0] + STALE else started[0] + STALE
    counted = {pod: fault for pod, fault in faults.items() if trusted_at is None or fault == _MISCONFIGURED}
    # Reports that do not count yet will, so the pool is judged again then.
    judged_again = trusted_at if counted != faults else None
    if counted:
        return PoolReadiness(Assessment(False, Reason.DEGRADED, _explained(counted)), judged_again)
    silent = not reports or None in reports.values()
    if silent and previous is not None and previous.get("reason") == Reason.DEGRADED:
        return PoolReadiness(Assessment.of(previous))
    if started is not None and observed.now < (warm := started[0] + pool.ttl):
        text = (
            f"pod {started[1]} started empty at {_text(started[0])}: conversations whose window was in its place are "
            f"replayed until {_text(warm)} at the latest"
        )
        until = warm if judged_again is None else min(warm, judged_again)
        return PoolReadiness(Assessment(True, Reason.WARMING, text), until)
    return PoolReadiness(Assessment(True, Reason.AT_DESIRED, _as_declared(pool)), judged_again)


def _behind(pool: PoolState, observed: Observed) -> Assessment | None:
    """What is not ours or not ready; the reason is that of a server with a fault, else of the first."""
    foreign = pool.objects.intersection(observed.conflicts)
    if foreign:
        return Assessment(False, Reason.NAME_CONFLICT, not_ours(foreign))
    behind = {program: health for program, health in pool.healths.items() if not health.assessment.status}
    if not behind:
        return None
    order = sorted(behind, key=lambda program: behind[program].assessment.reason not in FAULTS)
    waits = [
        f"{program}: {'; '.join([behind[program].assessment.message, *_waiting(behind[program], observed)])}"
        for program in order
    ]
    return Assessment(False, behind[order[0]].assessment.reason, "; ".join(waits))


def _waiting(health: Health, observed: Observed) -> Iterator[str]:
    """The pods that are not ready and of which nothing else is known."""
    if health.assessment.reason != Reason.STARTING:
        return
    for pod in sorted(observed.pods, key=name_of):
        if component_of(pod) == health.target.part and not is_ready(pod) and not _leaves(pod):
            yield f"pod {name_of(pod)} is not ready"


def _leaves(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _starts(pool: PoolState, pods: Sequence[Object]) -> Iterator[tuple[datetime, str]]:
    """When each server began with empty memory: a container that is restarted has lost what it had as well."""
    servers = {health.target.part for health in pool.healths.values()}
    for pod in pods:
        if component_of(pod) in servers and not _leaves(pod):
            for container in pod.get("status", {}).get("containerStatuses") or ():
                since = ((container.get("state") or {}).get("running") or {}).get("startedAt")
                if since:
                    yield datetime.fromisoformat(since), name_of(pod)


def _faults(router_states: Sequence[RouterState], revision: str) -> dict[str, str | None]:
    """The pool's fault as each prefill pod reports it; empty when there is none, None when no registrar knows yet."""
    faults: dict[str, str | None] = {}
    for state in router_states:
        for worker in state.workers:
            if worker.revision == revision:
                fault = None if worker.swa_pool is None else worker.swa_pool.fault
                known = faults.get(worker.pod)
                faults[worker.pod] = known if known or fault is None else fault
    return faults


def _explained(faults: Mapping[str, str]) -> str:
    """Each fault with its pods, its causes and what to do."""
    parts = []
    for fault in sorted(set(faults.values())):
        pods = ", ".join(sorted(pod for pod, reported in faults.items() if reported == fault))
        parts.append(f"{one_line(f'{fault} for {pods}')}: {_CAUSES.get(fault, 'no more is known')}")
    return "; ".join(parts)


def _as_declared(pool: PoolState) -> str:
    if not pool.healths:
        return "each prefill pod keeps its own windows"
    return "; ".join(f"{program}: {health.assessment.message}" for program, health in pool.healths.items())


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

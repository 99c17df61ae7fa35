"""The status of a resource: what each condition says, and the numbers beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epd_operator.api import names
from epd_operator.api.status import role_status, router_status
from epd_operator.plan.conditions.available import available
from epd_operator.plan.conditions.health import Assessment
from epd_operator.plan.conditions.reason import FAULTS, Reason
from epd_operator.plan.conditions.refusal import lasting, not_ours, passing, reason_of, refused_pods
from epd_operator.plan.conditions.replay_effective import effective
from epd_operator.plan.observation import WORKLOADS, workloads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.plan.conditions.health import Health
    from epd_operator.plan.conditions.replay_effective import ReplayRequest
    from epd_operator.plan.observation import Observed
    from epd_operator.plan.rollout import Ref


@dataclass(frozen=True)
class StatusInputs:
    """What the conditions are judged on.

    Attributes:
        valid: The condition `Valid`.
        healths: The state of each part.
        compat_key: Key of the set that should serve; empty when it is not known.
        held: Objects of earlier revisions that go on serving.
        replay: What the spec wants replayed; None when it cannot be planned.
        pool: The condition `SwaPoolReady`; None when there is no pool of windows.
    """

    valid: Assessment
    healths: Mapping[str, Health]
    compat_key: str
    held: Sequence[Ref]
    replay: ReplayRequest | None
    pool: Assessment | None


def judge(inputs: StatusInputs, observed: Observed, before: Mapping[str, Mapping[str, Any]]) -> dict[str, Assessment]:
    """Every condition of a resource.

    Args:
        inputs: What is known of it.
        observed: The cluster.
        before: Conditions as they stand, by type.
    """
    healths = inputs.healths
    serving = available(healths, observed.router_states, inputs.compat_key, before.get("Available"))
    obstacle = _obstacle(inputs, observed)
    ready = _ready(inputs, serving, obstacle, passing(observed.failures))
    parts = {f"{part.capitalize()}Ready": health.assessment for part, health in healths.items()}
    replay = effective(inputs.replay, observed.router_states, before.get("ReplayEffective"))
    optional = {"SwaPoolReady": inputs.pool, "ReplayEffective": replay}
    return {
        "Valid": inputs.valid,
        "Available": serving,
        **parts,
        **{name: assessment for name, assessment in optional.items() if assessment is not None},
        "Reconciling": _reconciling(inputs, ready, obstacle),
        "Stalled": obstacle or Assessment(False, Reason.NOT_STALLED, "nothing needs help"),
        "Ready": ready,
    }


def numbers(healths: Mapping[str, Health], url: str) -> dict[str, Any]:
    """`status.roles` and `status.router`; parts that do not exist are left out."""
    roles = {
        part: role_status(
            desired=health.target.desired,
            ready=health.ready,
            updated=health.updated,
            revision=health.target.revision,
        )
        for part, health in healths.items()
        if part in names.ROLES
    }
    router = healths.get(names.ROUTER)
    shown: dict[str, Any] = {"roles": roles} if roles else {}
    if router is not None:
        shown["router"] = router_status(desired=router.target.desired, ready=router.ready, url=url)
    return shown


def _obstacle(inputs: StatusInputs, observed: Observed) -> Assessment | None:
    """What waiting will not remove, or None."""
    if not inputs.valid.status:
        return Assessment(True, inputs.valid.reason, inputs.valid.message)
    if observed.conflicts:
        return Assessment(True, Reason.NAME_CONFLICT, not_ours(observed.conflicts))
    lines = lasting(observed.failures)
    if lines:
        return Assessment(True, reason_of(lines[0]), "; ".join(lines))
    refusals = [refused_pods(maker) for maker in workloads(observed.children)]
    first = next((refusal for refusal in refusals if refusal is not None), None)
    return None if first is None else Assessment(True, first.reason, first.message)


def _ready(
    inputs: StatusInputs, serving: Assessment, obstacle: Assessment | None, troubles: Sequence[str]
) -> Assessment:
    if obstacle is not None:
        return Assessment(False, obstacle.reason, obstacle.message)
    behind = {part: health.assessment for part, health in inputs.healths.items() if not health.assessment.status}
    if behind:
        # The reason is that of a part with a fault, else of the part that a request needs last.
        order = sorted(behind, key=lambda part: (behind[part].reason not in FAULTS, -names.COMPONENTS.index(part)))
        waits = "; ".join([*(f"{part}: {behind[part].message}" for part in order), *troubles])
        return Assessment(False, behind[order[0]].reason, waits)
    if not serving.status:
        return Assessment(False, serving.reason, serving.message)
    remains = _remainder(inputs, troubles)
    declared = [*inputs.healths, *([] if inputs.pool is None else ["swaPool"])]
    return remains or Assessment(True, Reason.ALL_READY, f"{', '.join(declared)} as declared")


def _remainder(inputs: StatusInputs, troubles: Sequence[str]) -> Assessment | None:
    """What is not as declared although every request is served."""
    if inputs.pool is not None and not inputs.pool.status:
        return Assessment(False, inputs.pool.reason, f"swaPool: {inputs.pool.message}")
    if troubles:
        return Assessment(False, Reason.APPLY_FAILED, "; ".join(troubles))
    if inputs.held:
        held = ", ".join(ref.name for ref in inputs.held if ref.kind in WORKLOADS)
        return Assessment(False, Reason.REPLACING, f"{held} until the routers route to all of the new set")
    return None


def _reconciling(inputs: StatusInputs, ready: Assessment, obstacle: Assessment | None) -> Assessment:
    if obstacle is not None:
        return Assessment(False, obstacle.reason, "waiting will not help: see Stalled")
    if ready.status:
        return Assessment(False, Reason.SETTLED, "nothing is left to do")
    if ready.reason == Reason.SCALED_TO_ZERO:
        return Assessment(False, Reason.SCALED_TO_ZERO, "waiting will not help: raise replicas")
    if ready.reason == Reason.DEGRADED:
        return Assessment(False, Reason.DEGRADED, "waiting will not help: see SwaPoolReady")
    reason = Reason.REPLACING if inputs.held else Reason.PROGRESSING
    return Assessment(True, reason, ready.message)

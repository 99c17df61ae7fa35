"""The status of a resource: what each condition says, and the numbers beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epd_operator.api import names
from epd_operator.api.status import role_status, router_status
from epd_operator.plan.conditions.available import available
from epd_operator.plan.conditions.health import Verdict
from epd_operator.plan.conditions.reason import FAULTS, Reason
from epd_operator.plan.conditions.refusal import lasting, not_ours, passing, reason_of, refused_pods
from epd_operator.plan.conditions.replay_effective import effective
from epd_operator.plan.observation import WORKLOADS, workloads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.plan.conditions.health import Health
    from epd_operator.plan.conditions.replay_effective import Asked
    from epd_operator.plan.observation import Observed
    from epd_operator.plan.rollout import Ref


@dataclass(frozen=True)
class Picture:
    """What the conditions are judged on.

    Attributes:
        valid: Verdict on the spec.
        healths: What each part has come to.
        compat_key: Key of the set that should serve; empty when it is not known.
        held: Objects of earlier revisions that go on serving.
        asked: What the spec wants replayed; None when it cannot be planned.
        pool: Verdict on the pool of windows; None when there is none.
    """

    valid: Verdict
    healths: Mapping[str, Health]
    compat_key: str
    held: Sequence[Ref]
    asked: Asked | None
    pool: Verdict | None


def judge(picture: Picture, observed: Observed, before: Mapping[str, Mapping[str, Any]]) -> dict[str, Verdict]:
    """Every condition of a resource.

    Args:
        picture: What is known of it.
        observed: The cluster.
        before: Conditions as they stand, by type.
    """
    healths = picture.healths
    serving = available(healths, observed.reports, picture.compat_key, before.get("Available"))
    obstacle = _obstacle(picture, observed)
    ready = _ready(picture, serving, obstacle, passing(observed.failures))
    parts = {f"{part.capitalize()}Ready": health.verdict for part, health in healths.items()}
    replay = effective(picture.asked, observed.reports, before.get("ReplayEffective"))
    optional = {"SwaPoolReady": picture.pool, "ReplayEffective": replay}
    return {
        "Valid": picture.valid,
        "Available": serving,
        **parts,
        **{name: verdict for name, verdict in optional.items() if verdict is not None},
        "Reconciling": _reconciling(picture, ready, obstacle),
        "Stalled": obstacle or Verdict(False, Reason.NOT_STALLED, "nothing needs help"),
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


def _obstacle(picture: Picture, observed: Observed) -> Verdict | None:
    """What waiting will not remove, or None."""
    if not picture.valid.status:
        return Verdict(True, picture.valid.reason, picture.valid.message)
    if observed.conflicts:
        return Verdict(True, Reason.NAME_CONFLICT, not_ours(observed.conflicts))
    lines = lasting(observed.failures)
    if lines:
        return Verdict(True, reason_of(lines[0]), "; ".join(lines))
    refusals = [refused_pods(maker) for maker in workloads(observed.children)]
    first = next((refusal for refusal in refusals if refusal is not None), None)
    return None if first is None else Verdict(True, first.reason, first.message)


def _ready(picture: Picture, serving: Verdict, obstacle: Verdict | None, troubles: Sequence[str]) -> Verdict:
    if obstacle is not None:
        return Verdict(False, obstacle.reason, obstacle.message)
    behind = {part: health.verdict for part, health in picture.healths.items() if not health.verdict.status}
    if behind:
        # The reason is that of a part with a fault, else of the part that a request needs last.
        order = sorted(behind, key=lambda part: (behind[part].reason not in FAULTS, -names.COMPONENTS.index(part)))
        waits = "; ".join([*(f"{part}: {behind[part].message}" for part in order), *troubles])
        return Verdict(False, behind[order[0]].reason, waits)
    if not serving.status:
        return Verdict(False, serving.reason, serving.message)
    remains = _remainder(picture, troubles)
    declared = [*picture.healths, *([] if picture.pool is None else ["swaPool"])]
    return remains or Verdict(True, Reason.ALL_READY, f"{', '.join(declared)} as declared")


def _remainder(picture: Picture, troubles: Sequence[str]) -> Verdict | None:
    """What is not as declared although every request is served."""
    if picture.pool is not None and not picture.pool.status:
        return Verdict(False, picture.pool.reason, f"swaPool: {picture.pool.message}")
    if troubles:
        return Verdict(False, Reason.APPLY_FAILED, "; ".join(troubles))
    if picture.held:
        held = ", ".join(ref.name for ref in picture.held if ref.kind in WORKLOADS)
        return Verdict(False, Reason.REPLACING, f"{held} until the routers route to all of the new set")
    return None


def _reconciling(picture: Picture, ready: Verdict, obstacle: Verdict | None) -> Verdict:
    if obstacle is not None:
        return Verdict(False, obstacle.reason, "waiting will not help: see Stalled")
    if ready.status:
        return Verdict(False, Reason.SETTLED, "nothing is left to do")
    if ready.reason == Reason.SCALED_TO_ZERO:
        return Verdict(False, Reason.SCALED_TO_ZERO, "waiting will not help: raise replicas")
    if ready.reason == Reason.DEGRADED:
        return Verdict(False, Reason.DEGRADED, "waiting will not help: see SwaPoolReady")
    reason = Reason.REPLACING if picture.held else Reason.PROGRESSING
    return Verdict(True, reason, ready.message)

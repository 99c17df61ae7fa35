"""Conditions as they are written: an assessment with its generation and the time of its last transition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from epd_operator.api.status import CONDITION_TYPES, MAX_MESSAGE
from epd_operator.plan.conditions.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from epd_operator.plan.conditions.health import Assessment

_BAD_WHEN_TRUE: Final = frozenset({"Reconciling", "Stalled"})
_SILENT: Final = frozenset({"Reconciling"})
_WANTED: Final = frozenset(
    {
        Reason.CREATING,
        Reason.SCALING,
        Reason.REPLACING,
        Reason.PROGRESSING,
        Reason.SCALED_TO_ZERO,
        Reason.TURNED_OFF,
    }
)
"""Reasons that follow from the spec: not a warning, although something is not ready for a while."""
_NEEDS_HELP: Final = frozenset(
    {
        Reason.UNSCHEDULABLE,
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_NOT_CREATED,
        Reason.CRASH_LOOPING,
        Reason.WORKER_REFUSED,
        Reason.DEGRADED,
    }
)
"""Told even when the condition was False before for a milder reason."""


@dataclass(frozen=True)
class Event:
    """A Kubernetes event about the resource.

    Attributes:
        type: Normal or Warning.
        reason: The condition's reason.
        message: The condition's type and message.
    """

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def current(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The conditions of a status, by type."""
    return {condition["type"]: condition for condition in status.get("conditions") or ()}


def write(
    assessments: Mapping[str, Assessment], before: Mapping[str, Mapping[str, Any]], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Conditions in their documented order; `lastTransitionTime` moves only with `status`."""
    written = []
    for condition_type in CONDITION_TYPES:
        assessment = assessments.get(condition_type)
        if assessment is None:
            continue
        status = assessment.status_text
        old = before.get(condition_type, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        written.append(
            {
                "type": condition_type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": since or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "reason": str(assessment.reason),
                "message": assessment.message[:MAX_MESSAGE],
            }
        )
    return written


def transitions(assessments: Mapping[str, Assessment], before: Mapping[str, Mapping[str, Any]]) -> tuple[Event, ...]:
    """Events for the conditions whose status differs from before.

    A new condition is reported only when it needs a person: that nothing is ready yet does not. A part that stays not
    ready is reported again when its reason becomes one that waiting does not cure; `Ready` is not, as it only repeats
    the part.
    """
    events = []
    for condition_type in CONDITION_TYPES:
        assessment = assessments.get(condition_type)
        if assessment is None or condition_type in _SILENT:
            continue
        good = assessment.status is not (condition_type in _BAD_WHEN_TRUE)
        old = before.get(condition_type)
        if old is None:
            reported = not good and condition_type in {"Valid", "Stalled"}
        else:
            worse = (
                assessment.reason in _NEEDS_HELP
                and old.get("reason") != assessment.reason
                and condition_type != "Ready"
            )
            reported = old.get("status") != assessment.status_text or worse
        if reported:
            message = f"{condition_type} is {assessment.status_text}: {assessment.message}"[:1024]
            calm = good or assessment.reason in _WANTED
            events.append(Event("Normal" if calm else "Warning", str(assessment.reason), message))
    return tuple(events)

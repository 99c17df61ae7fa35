"""What the API server refuses, and whether waiting can help."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from epd_operator.api import names
from epd_operator.plan.conditions.diagnosis import Diagnosis, one_line
from epd_operator.plan.conditions.reason import Reason
from epd_operator.plan.observation import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from epd_operator.plan.observation import Object

_PASSING: Final = re.compile(
    r": (InternalError|ServerTimeout|Timeout|TooManyRequests|ServiceUnavailable|Conflict|Gone|Expired"
    r"|409|410|429|5\d\d): "
)
"""Reasons and codes, as `Kind/name: reason: message` carries them, that the next attempt may not meet."""

_SENSELESS: Final = "failed to create typed patch object"
"""An apply that the API server cannot read is answered 500, and will be for as long as the object is the same."""


_UNKNOWN_KIND: Final = re.compile(r"^LeaderWorkerSet/\S+: (NotFound|404): ")
"""Applying a kind that the API server does not serve is answered as if the object were missing."""
_INSTALL: Final = (
    "roles with nodes above 1 need the LeaderWorkerSet API (leaderworkerset.x-k8s.io/v1), which this cluster "
    "does not have: install it, see https://lws.sigs.k8s.io, or set nodes to 1"
)


def passing(lines: Sequence[str]) -> list[str]:
    """The errors of an attempt that a further attempt may not meet, sorted."""
    return sorted({one_line(line) for line in lines if _passes(line)})


def lasting(lines: Sequence[str]) -> list[str]:
    """The errors of an attempt that will be met again until somebody acts, sorted."""
    match = {_INSTALL if _UNKNOWN_KIND.search(line) else one_line(line) for line in lines if not _passes(line)}
    return sorted(match)


def _passes(line: str) -> bool:
    return _PASSING.search(line) is not None and _SENSELESS not in line


def not_ours(held: Iterable[str]) -> str:
    """The message about foreign objects, given as `Kind/name`, that hold names of children."""
    return (
        f"not ours, so left alone: {', '.join(sorted(held))}; choose another metadata.name, or rename or delete them "
        f"(not what another {names.KIND} owns: it comes back)"
    )


def refused_pods(maker: Object) -> Diagnosis | None:
    """Why the API server refuses pods of a Deployment, from its ReplicaFailure condition; None when it does not."""
    for condition in (maker.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            text = one_line(condition.get("message", ""))
            return Diagnosis(reason_of(text), f"pods of {name_of(maker)} are refused: {text}")
    return None


def reason_of(text: str) -> Reason:
    """Which kind of refusal an error text is."""
    if text == _INSTALL:
        return Reason.LEADER_WORKER_SET_MISSING
    lowered = text.lower()
    if "exceeded quota" in lowered or "failed quota" in lowered:
        return Reason.QUOTA_EXCEEDED
    return Reason.FORBIDDEN if "forbidden" in lowered else Reason.APPLY_REJECTED

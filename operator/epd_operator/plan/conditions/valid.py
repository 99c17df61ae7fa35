"""The condition `Valid`: the findings on a spec as a message for people and a reason for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd_operator.engines.validation import STRUCTURE, VERSION
from epd_operator.plan.conditions.health import Assessment
from epd_operator.plan.conditions.reason import Reason, reason_of_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_operator.engines import Profile
    from epd_operator.rules.finding import Finding
    from epd_operator.rules.judgement import Judgement


def refused(errors: Sequence[Finding]) -> Assessment:
    """The condition of a spec that must not run; its reason is that of the first error.

    Args:
        errors: Everything that refuses it, at least one.
    """
    reasons = {STRUCTURE: Reason.INVALID_SPEC, VERSION: Reason.UNKNOWN_ENGINE_VERSION}
    first = errors[0].rule
    return Assessment(False, reasons.get(first) or reason_of_rule(first), "; ".join(map(str, errors)))


def accepted(profile: Profile, platform: str, judgement: Judgement) -> Assessment:
    """The condition of a spec that may run, with all of its warnings.

    Args:
        profile: Of its engine.
        platform: What its pods run on.
        judgement: What the rules say of it.
    """
    plugins = f" with {' and '.join(sorted(profile.plugins))}" if profile.plugins else ""
    rehearsal = f", a rehearsal on {platform.upper()}" if profile.hardware(platform).rehearsal else ""
    judged = f"{profile.engine_type} {profile.version}{plugins}{rehearsal}"
    warnings = [str(finding) for finding in judgement.findings]
    reported = f"; {_count(len(warnings))}: {'; '.join(warnings)}" if warnings else ""
    if not judgement.approximate:
        return Assessment(True, Reason.ACCEPTED, f"accepted by the rules of {judged}{reported}")
    text = f"this version has no rules of its own; accepted by those of {judged}, the nearest lower release{reported}"
    return Assessment(True, Reason.RULES_APPROXIMATE, text)


def acknowledged(judgement: Judgement) -> list[str]:
    """Ids of the broken rules that the user has acknowledged."""
    return sorted({finding.rule for finding in judgement.findings if finding.acknowledged})


def _count(warnings: int) -> str:
    return "1 warning" if warnings == 1 else f"{warnings} warnings"

"""Verdicts for machines: the JSON of `epd validate -o json`. Its keys are an interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.cli.document import Unreadable
    from epd_operator.cli.verdict import Tally, Verdict
    from epd_operator.rules.finding import Finding

SCHEMA: Final = "epd.dev/validate/v1"
"""Keys are added under the same name; a key that changes or goes makes a new one."""


def whole(verdicts: Sequence[Verdict], unreadable: Sequence[Unreadable], tally: Tally) -> dict[str, Any]:
    """Everything that a run found."""
    return {
        "schema": SCHEMA,
        "exitStatus": tally.status,
        "summary": {
            "documents": tally.accepted + tally.refused,
            "accepted": tally.accepted,
            "refused": tally.refused,
            "errors": tally.errors,
            "warnings": tally.refused_warnings + tally.accepted_warnings,
            "skipped": tally.skipped,
            "unreadable": tally.unreadable,
        },
        "documents": [of_verdict(verdict) for verdict in verdicts],
        "unreadable": [
            {
                "file": fault.name,
                "line": fault.error.line or None,
                "column": fault.error.column or None,
                "message": fault.error.message,
            }
            for fault in unreadable
        ],
    }


def of_verdict(verdict: Verdict) -> dict[str, Any]:
    """One judged object."""
    metadata = verdict.document.data.get("metadata") if verdict.document is not None else None
    named: Mapping[str, Any] = metadata if isinstance(metadata, dict) else {}
    return {
        "file": verdict.file,
        "document": verdict.document.number if verdict.document is not None else None,
        "namespace": named.get("namespace"),
        "name": named.get("name"),
        "accepted": verdict.accepted,
        "engineVersion": verdict.judgement.version or None,
        "platform": verdict.platform or None,
        "approximate": verdict.judgement.approximate,
        "askedVersion": verdict.judgement.asked or None,
        "findings": [_of_finding(verdict, finding) for finding in verdict.judgement.findings],
    }


def _of_finding(verdict: Verdict, finding: Finding) -> dict[str, Any]:
    result = dict(finding.as_json())
    sides = []
    for side, written in zip(finding.sides, result["sides"], strict=True):
        spot = verdict.place(side)
        sides.append({**written, "line": spot and spot.line, "column": spot and spot.column})
    place = verdict.main_place(finding)
    return {
        **result,
        "sides": sides,
        "file": verdict.file,
        "line": place and place.line,
        "column": place and place.column,
    }

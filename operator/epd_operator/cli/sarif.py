"""Verdicts as SARIF 2.1.0, which code hosts show beside the lines of a change."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from epd_operator import __version__
from epd_operator.engines import table
from epd_operator.rules.rule import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from epd_operator.cli.document import Unreadable
    from epd_operator.cli.position import Position
    from epd_operator.cli.verdict import Verdict
    from epd_operator.rules.finding import Finding

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
UNREADABLE: Final = "document-unreadable"
_NAMED: Final = re.compile(r"\{(\w+)\}")
"""A computed value in the text of a rule."""


def log(verdicts: Sequence[Verdict], unreadable: Sequence[Unreadable]) -> dict[str, Any]:
    """A SARIF log with one run."""
    rules: dict[str, dict[str, Any]] = {}
    results = [_result(verdict, finding, rules) for verdict in verdicts for finding in verdict.judgement.findings]
    results += [_unreadable(fault, rules) for fault in unreadable]
    driver = {
        "name": "epd validate",
        "version": __version__,
        "rules": list(rules.values()),
    }
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": not unreadable}],
                "results": results,
            }
        ],
    }


def _result(verdict: Verdict, finding: Finding, rules: dict[str, dict[str, Any]]) -> dict[str, Any]:
    says, level = _described().get(finding.rule, (finding.rule.replace("-", " "), finding.severity))
    rule = _rule(rules, finding.rule, level, says, finding.source)
    place = verdict.main_place(finding)
    related = [
        _location(verdict.file, spot, str(side))
        for side in finding.sides
        if (spot := verdict.place(side)) is not None and spot != place
    ]
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": str(finding)},
        "locations": [_location(verdict.file, place)],
        **({"relatedLocations": related} if related else {}),
        "partialFingerprints": {"epdFinding/v1": _fingerprint(verdict, finding)},
        "properties": {
            "role": finding.role,
            "engineVersion": finding.version,
            "platform": finding.platform,
            "decidedBy": finding.decided_by,
        },
    }


def _unreadable(result: Unreadable, rules: dict[str, dict[str, Any]]) -> dict[str, Any]:
    error = result.error
    rule = _rule(rules, UNREADABLE, "error", "cannot be read as Kubernetes manifests", "epd")
    region = (
        {"startLine": error.line, **({"startColumn": error.column} if error.column else {})} if error.line else None
    )
    physical = {"artifactLocation": {"uri": _uri(result.name)}, **({"region": region} if region else {})}
    return {
        "ruleId": UNREADABLE,
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": f"{result.name} {error.message}"},
        "locations": [{"physicalLocation": physical}],
    }


@functools.cache
def _described() -> Mapping[str, tuple[str, str]]:
    """Text and severity of every rule, without the values of one finding."""
    result = {rule: (text, "error") for rule, text in BUILT_IN.items()}
    for ruleset in table.RULESETS.values():
        result |= {rule.id: (_NAMED.sub(_spelt, rule.says), rule.severity) for rule in ruleset.rules}
    return result


def _spelt(match: re.Match[str]) -> str:
    return f"({match[1].replace('_', ' ')})"


def _rule(rules: dict[str, dict[str, Any]], name: str, level: str, says: str, source: str) -> int:
    """Place of a rule's description among those of the run, which it joins when it is new."""
    if name not in rules:
        rules[name] = {
            "id": name,
            "shortDescription": {"text": name.replace("-", " ")},
            "fullDescription": {"text": says},
            "help": {"text": f"{says}. Source: {source}"},
            "defaultConfiguration": {"level": level},
        }
    return list(rules).index(name)


def _location(name: str, place: Position | None, message: str = "") -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(name)}}
    if place is not None:
        physical["region"] = {
            "startLine": place.line,
            "startColumn": place.column,
            "endLine": place.line,
            "endColumn": place.end,
        }
    return {"physicalLocation": physical, **({"message": {"text": message}} if message else {})}


def _uri(name: str) -> str:
    path = PurePath(name)
    if path.is_absolute():
        return path.as_uri()
    # A colon in the first part of a relative reference would read as a scheme.
    return quote(path.as_posix(), safe="/", errors="surrogateescape")


def _fingerprint(verdict: Verdict, finding: Finding) -> str:
    """The same for the same finding wherever it moves in its file."""
    label = verdict.document.label if verdict.document is not None else ""
    parts: Iterable[str] = (verdict.file, label, finding.rule, finding.role, *(side.field for side in finding.sides))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]

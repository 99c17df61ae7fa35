"""The recorded cases: command lines with the engine's answers, and specs with the findings that they must have."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from epd_operator.engines.sglang.plugin import NAME as PLUGIN
from tools.corpus.field_cases import FieldCase, field_cases
from tools.corpus.prerelease_lines import ALL, LINES
from tools.corpus.rule_examples import RuleExample, rule_examples
from tools.differential.comparison import VERSION, function
from tools.mutation.recorded_case import FindingSummary, RecordedCase, line, spec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DATA: Final = Path(__file__).parents[1] / "differential" / "data"
VERDICTS: Final = DATA / "verdicts.jsonl"
BOUNDARIES: Final = DATA / "boundaries.jsonl"
PLUGIN_VERDICTS: Final = DATA / "plugin_verdicts.jsonl"


@dataclass(frozen=True)
class EngineVerdict:
    """The engine's verdict on a command line, which findings must agree with.

    Attributes:
        accepted: No error may be found; otherwise at least one must.
        deciding: Function of the engine that one of the errors must name; empty: unknown.
    """

    accepted: bool
    deciding: str = ""

    def __call__(self, findings: Sequence[FindingSummary]) -> bool:
        """Whether findings are as expected."""
        errors = [finding for finding in findings if finding.severity == "error"]
        if self.accepted or not errors:
            return self.accepted and not errors
        return not self.deciding or any(function(finding.decided_by) == self.deciding for finding in errors)


@dataclass(frozen=True)
class ExpectedFindings:
    """The findings that a field case demands of a spec.

    Attributes:
        case: The field case.
    """

    case: FieldCase

    def __call__(self, findings: Sequence[FindingSummary]) -> bool:
        """Whether findings are as expected."""
        errors = {finding.rule for finding in findings if finding.severity == "error"}
        warnings = {finding.rule for finding in findings if finding.severity == "warning"}
        case = self.case
        return (
            bool(case.refused) == bool(errors)
            and set(case.refused) <= errors
            and set(case.warned) <= warnings
            and not set(case.quiet) & (errors | warnings)
        )


@dataclass(frozen=True)
class ExpectedRule:
    """Whether one rule must be among the findings.

    Attributes:
        rule: Its id.
        speaks: Whether it must.
    """

    rule: str
    speaks: bool

    def __call__(self, findings: Sequence[FindingSummary]) -> bool:
        """Whether findings are as expected."""
        return any(finding.rule == self.rule for finding in findings) == self.speaks


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of command lines."""
    return [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def recorded_line(row: Mapping[str, Any]) -> RecordedCase:
    """A row of `verdicts.jsonl` or `boundaries.jsonl`."""
    verdict = EngineVerdict(row["accepted"], function(row.get("decided_by")))
    settings = row.get("resolved", {}) if row["accepted"] else {}
    return line(
        row["id"],
        version=VERSION,
        platform=row["platform"],
        argv=row["argv"],
        env=row.get("env") or {},
        holds=verdict,
        config=row.get("config"),
        settings=settings,
    )


def with_plugin() -> Iterator[dict[str, Any]]:
    """The rows of `verdicts.jsonl` as the engine with the plugin epd answers them; no values that it would resolve."""
    turned = {(row["id"], row["platform"]): row["accepted"] for row in rows(PLUGIN_VERDICTS)}
    for row in rows(VERDICTS):
        other = turned.get((row["id"], row["platform"]))
        yield row if other is None else {**row, "accepted": other, "error": None, "decided_by": None, "resolved": {}}


def _plugged_line(row: Mapping[str, Any]) -> RecordedCase:
    return line(
        f"{row['id']} with {PLUGIN}",
        version=VERSION,
        platform=row["platform"],
        argv=row["argv"],
        env=row["env"],
        holds=EngineVerdict(row["accepted"]),
        config=row.get("config"),
        plugins=(PLUGIN,),
    )


def _early_lines() -> Iterator[RecordedCase]:
    for at, (flags, refusing, platform) in enumerate(LINES):
        for version in ALL:
            verdict = EngineVerdict(version not in refusing)
            argv = ["--tp-size", "4", *flags.split()]
            yield line(f"{version} line {at}", version=version, platform=platform, argv=argv, env={}, holds=verdict)


@cache
def recorded() -> tuple[RecordedCase, ...]:
    """Every recorded case."""
    lines = [recorded_line(row) for path in (VERDICTS, BOUNDARIES) for row in rows(path)]
    specs = [spec(case.name, case.document, ExpectedFindings(case)) for case in field_cases()]
    examples = map(_example, rule_examples())
    turned = {(row["id"], row["platform"]) for row in rows(PLUGIN_VERDICTS)}
    plugged = [_plugged_line(row) for row in with_plugin() if (row["id"], row["platform"]) in turned]
    return (*lines, *plugged, *_early_lines(), *(case for case in (*specs, *examples) if case is not None))


def _example(example: RuleExample) -> RecordedCase | None:
    expected = ExpectedRule(example.rule, example.speaks)
    if example.document is not None:
        return spec(example.name, example.document, expected)
    return line(
        example.name,
        version=example.version,
        platform=example.platform,
        argv=example.argv,
        env=example.env,
        holds=expected,
        plugins=example.plugins,
    )

"""Our verdict beside the engine's: what must be equal, and what is not."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from epd_operator.engines.validation import validate_command_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from epd_operator.rules.judgement import Judgement
    from tools.differential.generator import Case
    from tools.differential.oracle import Answer

VERSION = "0.5.23"


def function(path: str | None) -> str:
    """The last two parts of a function's path, as our findings write it: ``parallel_hook.handle_dwdp``."""
    return ".".join((path or "").split(".")[-2:])


@dataclass(frozen=True)
class Comparison:
    """One command line, judged by both."""

    case: Case
    answer: Answer
    judgement: Judgement

    @property
    def deciding(self) -> str:
        """The engine's function that refused; empty when it accepted."""
        return function(self.answer.raised_by)

    @cached_property
    def ours(self) -> frozenset[str]:
        """The engine's functions that our errors name."""
        return frozenset(function(finding.decided_by) for finding in self.judgement.errors)

    @property
    def agrees(self) -> bool:
        """Whether the verdicts are the same."""
        return self.answer.accepted is self.judgement.accepted

    @property
    def reason_found(self) -> bool:
        """Whether one of our errors names the function that refused; true where both accept."""
        return not self.deciding or self.deciding in self.ours

    @property
    def differences(self) -> Mapping[str, tuple[Any, Any]]:
        """Resolved values that are not what the engine makes of them: ours and the engine's, by name."""
        if not (self.answer.accepted and self.judgement.accepted):
            return {}
        resolved = next(iter(self.judgement.resolved.values()), {})
        theirs = self.answer.resolved
        both = {name: (value, theirs[name]) for name, value in resolved.items() if name in theirs}
        return {name: pair for name, pair in both.items() if _plain(pair[0]) != _plain(pair[1])}

    @property
    def kind(self) -> str:
        """What disagrees, so that a smaller case can be checked to show the same; empty when nothing does."""
        if self.answer.accepted is None:
            return "the engine gave no verdict"
        if self.agrees:
            return "" if self.reason_found else f"{self.deciding} refuses, we refuse for another reason"
        if self.answer.accepted:
            return f"the engine accepts, we refuse by {self.judgement.errors[0].rule}"
        return f"{self.deciding} refuses, we accept"

    @override
    def __str__(self) -> str:
        message = "accepts" if self.answer.accepted else f"{self.answer.stage}: {self.answer.error}"
        findings = [f"    ours:   {finding}" for finding in self.judgement.findings] or ["    ours:   accepts"]
        by = f" ({self.deciding})" if self.deciding else ""
        return "\n".join((f"  {command(self.case)}", f"    engine: {message}{by}", *findings))


def command(case: Case) -> str:
    """A case as a person would type it."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in case.env.items()]
    config = ["# with another config.json"] if case.config else []
    return " ".join((f"[{case.platform}]", *variables, shlex.join(case.argv), *config))


def judge(case: Case) -> Judgement:
    """Our verdict.

    Raises:
        Exception: Whatever our rules raise, with the command line noted on it.
    """
    try:
        return validate_command_line(VERSION, case.platform, case.argv, case.env, config=case.config)
    except Exception as error:
        error.add_note(command(case))
        raise


def compare(cases: Sequence[Case], answers: Sequence[Answer]) -> list[Comparison]:
    """Judge each case, and put the engine's answer beside it."""
    return [Comparison(case, answer, judge(case)) for case, answer in zip(cases, answers, strict=True)]


def disagreements(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Those that differ in verdict or reason."""
    return [comparison for comparison in comparisons if comparison.kind]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

"""One recorded thing, a command line or a spec, with the processes that rules look at and what must come of it.

A stand asks the judgement itself for its processes, by a rule that notes where it was asked; so what mutants meet is
what users meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from epd_operator.engines import table
from epd_operator.engines.validation import validate
from epd_operator.rules.expression import ROLE, Expr
from epd_operator.rules.judgement import SPEC_ROLES, JudgementContext, judge_command_line, judge_spec
from epd_operator.rules.process import Process, mapping, read
from epd_operator.rules.rule import ROLES, Rule
from epd_operator.rules.version import Refusal, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from epd_operator.rules.expression import EvaluationScope, Value
    from epd_operator.rules.ruleset import Ruleset

SGLANG: Final = table.RULESETS["SGLang"]
_RULE_IDS: Final = frozenset(rule.id for rule in SGLANG.rules)


@dataclass(frozen=True)
class Found:
    """A finding, as far as an expectation can speak of it."""

    rule: str
    severity: str
    decided_by: str = ""


@dataclass(eq=False)
class Stand:
    """Something recorded.

    Attributes:
        name: What a report calls it.
        version: Engine version that judges it.
        processes: Role to process, every role of a spec; those in `judged` exist.
        judged: Roles whose process is judged.
        bare: It is a command line.
        acknowledged: Rules that its spec takes responsibility for.
        constant: Findings that no rule makes.
        holds: Whether findings are as expected.
        settings: What the engine was seen to make of the flags, by name.
    """

    name: str
    version: str
    processes: Mapping[str, Process]
    judged: tuple[str, ...]
    bare: bool
    constant: tuple[Found, ...]
    holds: Callable[[Sequence[Found]], bool]
    acknowledged: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def places(self, rule: Rule) -> list[Process]:
        """The processes that a rule looks at."""
        if not rule.roles:
            return [] if self.bare else [self.processes[role] for role in self.judged[:1]]
        return [self.processes[role] for role in self.judged if role in rule.roles]

    def applies(self, rule: Rule) -> bool:
        """Whether the rule belongs to the version."""
        return _in_version(rule, SGLANG, self.version)

    def finding_of(self, rule: Rule) -> Found:
        """What a broken rule comes to here."""
        excused = (rule.operator_only and self.bare) or (rule.overridable and rule.id in self.acknowledged)
        return Found(rule.id, "warning" if excused else rule.severity, rule.decided_by)

    def broken(self, rules: Iterable[Rule]) -> list[Rule]:
        """The rules of these that are broken."""
        return [
            rule
            for rule in rules
            if self.applies(rule) and any(rule.when.value(process) for process in self.places(rule))
        ]


def _in_version(rule: Rule, ruleset: Ruleset, version: str) -> bool:
    rank = ruleset.rank(version)
    return (not rule.since or ruleset.rank(rule.since) <= rank) and (not rule.until or rank < ruleset.rank(rule.until))


class _Witness(Expr):
    """A condition that is never true and notes every scope that it is asked in."""

    kind = "bool"
    nullable = False

    def __init__(self) -> None:
        self.seen: list[Process] = []

    @override
    def value(self, scope: EvaluationScope) -> Value:
        assert isinstance(scope, Process)
        self.seen.append(scope)
        return False


def _witnessed(ask: Callable[[Ruleset], object]) -> list[Process]:
    witness = _Witness()
    rule = Rule("witness", witness, (ROLE,), "", "", "", roles=ROLES)
    ask(replace(SGLANG, rules=(rule,), resolved=()))
    return witness.seen


def line(
    name: str,
    version: str,
    platform: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    config: Mapping[str, Any] | None,
    holds: Callable[[Sequence[Found]], bool],
    settings: Mapping[str, Any],
) -> Stand:
    """A bare command line."""
    facts = None if config is None else table.checkpoint(config)
    judgements = []

    def ask(ruleset: Ruleset) -> None:
        judgements.append(judge_command_line(JudgementContext(ruleset, version, platform, bare=True), argv, env, facts))

    (process,) = _witnessed(ask)
    constant = tuple(Found(f.rule, f.severity, f.decided_by) for f in judgements[0].findings)
    return Stand(name, version, {process.role: process}, (process.role,), True, constant, holds, settings=settings)


def spec(name: str, document: Mapping[str, Any], holds: Callable[[Sequence[Found]], bool]) -> Stand | None:
    """A spec; None when SGLang's rules do not come to judge it."""
    engine = mapping(read(document, "spec.engine"))
    resolved = resolve(str(engine.get("version")), "Nearest" if engine.get("versionPolicy") == "Nearest" else "Strict")
    if engine.get("type") != "SGLang" or isinstance(resolved, Refusal):
        return None
    seen = _witnessed(lambda ruleset: judge_spec(ruleset, resolved, document))
    if not seen:
        return None
    processes = {process.role: process for process in seen}
    judged = tuple(processes)
    first = seen[0]
    for role in SPEC_ROLES:
        if role not in processes:  # As `Process.at` makes it, but one that keeps what it once found out.
            processes[role] = Process(
                role, first.platform, first.rank, {}, {}, first.checkpoint, first.owned, first.document
            )
    for process in processes.values():
        process.siblings = processes
    constant = tuple(
        Found(finding.rule, finding.severity, finding.decided_by)
        for finding in validate(document).findings
        if finding.rule not in _RULE_IDS
    )
    named = engine.get("acknowledge")
    acknowledged = frozenset(map(str, named)) if isinstance(named, list) else frozenset()
    return Stand(name, resolved.version, processes, judged, False, constant, holds, acknowledged)

"""One recorded case, a command line or a spec, with the processes that rules judge and the findings that it must have.

A case gets its processes from the judgement itself, by a rule that notes where it is evaluated; so mutants are judged
on what users are judged on.
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
class FindingSummary:
    """What an expectation can refer to of a finding."""

    rule: str
    severity: str
    decided_by: str = ""


@dataclass(eq=False)
class RecordedCase:
    """A recorded command line or spec.

    Attributes:
        name: Its name in a report.
        version: Engine version that judges it.
        processes: Role to process, every role of a spec; those in `judged` exist.
        judged: Roles whose process is judged.
        bare: It is a command line.
        acknowledged: Rules that its spec takes responsibility for.
        constant: Findings that no rule makes.
        holds: Whether findings are as expected.
        settings: Values that the engine was seen to resolve, by name.
    """

    name: str
    version: str
    processes: Mapping[str, Process]
    judged: tuple[str, ...]
    bare: bool
    constant: tuple[FindingSummary, ...]
    holds: Callable[[Sequence[FindingSummary]], bool]
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

    def finding_of(self, rule: Rule) -> FindingSummary:
        """The finding of a broken rule in this case."""
        excused = (rule.operator_only and self.bare) or (rule.overridable and rule.id in self.acknowledged)
        return FindingSummary(rule.id, "warning" if excused else rule.severity, rule.decided_by)

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


class _Recorder(Expr):
    """A condition that is never true and notes every process that it is evaluated in."""

    kind = "bool"
    nullable = False

    def __init__(self) -> None:
        self.seen: list[Process] = []

    @override
    def value(self, scope: EvaluationScope) -> Value:
        assert isinstance(scope, Process)
        self.seen.append(scope)
        return False


def _processes(ask: Callable[[Ruleset], object]) -> list[Process]:
    recorder = _Recorder()
    rule = Rule("witness", recorder, (ROLE,), "", "", "", roles=ROLES)
    ask(replace(SGLANG, rules=(rule,), resolved=()))
    return recorder.seen


def line(
    name: str,
    *,
    version: str,
    platform: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    holds: Callable[[Sequence[FindingSummary]], bool],
    config: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    plugins: tuple[str, ...] = (),
) -> RecordedCase:
    """A bare command line.

    Args:
        name: Its name in a report.
        version: Engine version that judges it.
        platform: What it runs on.
        argv: Arguments after the program.
        env: Variables.
        holds: Whether findings are as expected.
        config: Fields of config.json that differ from the released checkpoint's.
        settings: Values that the engine was seen to resolve, by name.
        plugins: What the engine loads.
    """
    facts = None if config is None else table.checkpoint(config)
    judgements = []

    def ask(ruleset: Ruleset) -> None:
        context = JudgementContext(ruleset, version, platform, bare=True, plugins=plugins)
        judgements.append(judge_command_line(context, argv, env, facts))

    (process,) = _processes(ask)
    constant = tuple(FindingSummary(f.rule, f.severity, f.decided_by) for f in judgements[0].findings)
    return RecordedCase(
        name, version, {process.role: process}, (process.role,), True, constant, holds, settings=settings or {}
    )


def spec(
    name: str, document: Mapping[str, Any], holds: Callable[[Sequence[FindingSummary]], bool]
) -> RecordedCase | None:
    """A spec; None when SGLang's rules do not judge it."""
    engine = mapping(read(document, "spec.engine"))
    resolved = resolve(str(engine.get("version")), "Nearest" if engine.get("versionPolicy") == "Nearest" else "Strict")
    if engine.get("type") != "SGLang" or isinstance(resolved, Refusal):
        return None
    seen = _processes(lambda ruleset: judge_spec(ruleset, resolved, document))
    if not seen:
        return None
    processes = {process.role: process for process in seen}
    judged = tuple(processes)
    first = seen[0]
    for role in SPEC_ROLES:
        if role not in processes:  # As `Process.at` makes it, but one that keeps what it has evaluated.
            processes[role] = Process(
                role, first.platform, first.rank, {}, {}, first.checkpoint, first.owned, first.document
            )
    for process in processes.values():
        process.siblings = processes
    constant = tuple(
        FindingSummary(finding.rule, finding.severity, finding.decided_by)
        for finding in validate(document).findings
        if finding.rule not in _RULE_IDS
    )
    named = engine.get("acknowledge")
    acknowledged = frozenset(map(str, named)) if isinstance(named, list) else frozenset()
    return RecordedCase(name, resolved.version, processes, judged, False, constant, holds, acknowledged)

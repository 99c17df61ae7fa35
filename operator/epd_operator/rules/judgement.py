"""From a spec, or from a bare command line, to every finding about it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from epd_operator.api import names
from epd_operator.rules import commandline, version
from epd_operator.rules.advisory import advise
from epd_operator.rules.context import JudgementContext
from epd_operator.rules.expression import leaves_of
from epd_operator.rules.finding import Finding, Side, plain
from epd_operator.rules.owner import Field, field_of, instead
from epd_operator.rules.process import Process, mapping, read
from epd_operator.rules.remedy import remedy
from epd_operator.rules.rule import BUILT_IN
from epd_operator.rules.side import rests_on_a_fault, sides

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epd_operator.rules.advisory import Advisory
    from epd_operator.rules.commandline import ParseFault
    from epd_operator.rules.expression import Value
    from epd_operator.rules.flag import Catalogue
    from epd_operator.rules.owner import Owner
    from epd_operator.rules.rule import Rule, Severity
    from epd_operator.rules.ruleset import Ruleset

__all__ = ["SPEC_ROLES", "Judgement", "JudgementContext", "judge_command_line", "judge_process", "judge_spec"]

SPEC_ROLES: Final = ("encode", "prefill", "decode")
_LENIENT: Final = ("flag-of-another-version", "flag-unknown")
"""What a version without rules of its own may well take."""


@dataclass(frozen=True)
class Judgement:
    """What the rules say.

    Attributes:
        findings: Everything found, errors first.
        version: The version whose rules were applied.
        approximate: The version asked for has no rules of its own.
        asked: The version asked for; empty when no rules were applied.
        resolved: By role, the values that the engine resolves its flags to, under the engine's own names where it has
            them.
    """

    findings: tuple[Finding, ...]
    version: str = ""
    approximate: bool = False
    asked: str = ""
    resolved: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """Whether nothing was refused."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What refuses it."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


def judge_command_line(
    context: JudgementContext,
    argv: Sequence[str],
    env: Mapping[str, str],
    checkpoint: Mapping[str, Value] | None = None,
) -> Judgement:
    """Judge a bare command line as the engine would.

    Args:
        context: The engine, its version and platform; `bare` is set.
        argv: The arguments after the program; the role is read from them, as the engine does.
        env: Environment variables.
        checkpoint: Facts of another checkpoint than the released one.
    """
    parsed = commandline.parse(argv, context.catalogue("aggregated"))
    broken = [
        Finding(
            fault.rule,
            "warning" if context.lenient and fault.rule in _LENIENT else "error",
            parsed.role,
            (_faulty_argument(fault),),
            fault.message,
            fault.fix,
            version=context.version,
            platform=context.platform,
            decided_by=fault.decided_by,
            source=context.flags_source,
        )
        for fault in parsed.faults
    ]
    facts = context.ruleset.checkpoint if checkpoint is None else checkpoint
    process = Process(
        parsed.role,
        context.platform,
        context.ruleset.rank(context.version),
        parsed.args,
        env,
        facts,
        document={"engine": {"plugins": context.plugins}} if context.plugins else {},
        dropped=frozenset(fault.flag for fault in parsed.faults if fault.rule == "flag-value") - frozenset(parsed.args),
    )
    findings = [*broken, *judge_process(context, process)]
    return _judgement(context, findings, {parsed.role: process})


def _faulty_argument(fault: ParseFault) -> Side:
    """A flag that was given, with the value at fault if it has one."""
    if not fault.flag:
        return Side("command line", fault.value)
    dashes = "-" if len(fault.flag) == 1 else "--"
    return Side(f"{dashes}{fault.flag}", fault.value, form="alone" if fault.value is None else "value")


def judge_spec(
    ruleset: Ruleset,
    resolved: version.Resolved,
    document: Mapping[str, Any],
    advisories: tuple[Advisory, ...] = (),
    refused: frozenset[str] = frozenset(),
) -> Judgement:
    """Judge a spec; what has the wrong type in it counts as absent.

    Args:
        ruleset: The engine that `spec.engine.type` names.
        resolved: The version whose rules apply.
        document: The whole object as the user wrote it.
        advisories: What is known of single builds.
        refused: Fields that the schema refuses.
    """
    spec = mapping(document.get("spec"))
    engine = mapping(spec.get("engine"))
    acknowledged = engine.get("acknowledge")
    context = JudgementContext(
        ruleset,
        resolved.version,
        engine.get("platform") or ruleset.default_platform,
        lenient=engine.get("versionPolicy") == "Nearest",
        acknowledged=tuple(map(str, acknowledged)) if isinstance(acknowledged, list) else (),
        advisories=advisories,
        refused=refused,
    )
    processes: dict[str, Process] = {}
    findings: list[Finding] = []
    # The served name defaults to the object's own, which is not part of the spec.
    whole = {**spec, "metadata": {"name": read(document, "metadata.name")}}
    for role in SPEC_ROLES:
        declared = read(spec, f"roles.{role}")
        if isinstance(declared, Mapping):
            args, faults = _typed_args(context, role, mapping(declared.get("args")))
            findings += [*faults, *_owned_variables(context, role, declared)]
            variables = {name: value for name, value in mapping(declared.get("env")).items() if isinstance(value, str)}
            processes[role] = Process(
                role,
                context.platform,
                ruleset.rank(resolved.version),
                args,
                variables,
                ruleset.checkpoint,
                ruleset.owned,
                whole,
                processes,
                frozenset(mapping(declared.get("args"))) - frozenset(args),
            )
    for process in processes.values():
        findings += judge_process(context, process)
        findings += advise(
            advisories,
            str(engine.get("version")),
            process,
            context.catalogue(process.role),
            frozenset(context.acknowledged),
        )
    if processes:
        findings += _across(context, next(iter(processes.values())))
    findings += _acknowledgements(context, findings)
    return replace(
        _judgement(context, findings, processes), approximate=resolved.approximate, asked=str(engine.get("version"))
    )


def judge_process(context: JudgementContext, process: Process) -> Iterator[Finding]:
    """Everything that the rules for a process find."""
    for rule in context.ruleset.rules_of(context.version):
        if process.role in rule.roles and rule.when.value(process) and not _on_a_fault(context, rule, process):
            yield _finding(context, rule, process, process.role)


def _across(context: JudgementContext, process: Process) -> Iterator[Finding]:
    for rule in context.ruleset.rules_of(context.version):
        if not rule.roles and rule.when.value(process) and not _on_a_fault(context, rule, process):
            yield _finding(context, rule, process, "")


def _on_a_fault(context: JudgementContext, rule: Rule, process: Process) -> bool:
    return rests_on_a_fault(context, (rule.when, *rule.sides), rule.sides, process)


def _finding(context: JudgementContext, rule: Rule, process: Process, role: str) -> Finding:
    shown = {name: plain(expression.value(process)) for name, expression in rule.shows.items()}
    acknowledged = rule.overridable and rule.id in context.acknowledged
    excused = acknowledged or (rule.operator_only and context.bare)
    return Finding(
        rule=rule.id,
        severity="warning" if excused else rule.severity,
        role=role,
        sides=sides(context, rule.sides, process),
        says=rule.says.format(**shown),
        fix=rule.fix.format(**shown),
        version=context.version,
        platform=context.platform,
        inferred=bool(rule.decided_by) and context.version not in rule.stated,
        overridable=rule.overridable,
        acknowledged=acknowledged,
        decided_by=rule.decided_by,
        source=rule.source,
    )


def _typed_args(
    context: JudgementContext, role: str, args: Mapping[str, Any]
) -> tuple[dict[str, Value], list[Finding]]:
    """The flags with values of the right type, and a finding for each of the others."""
    catalogue = context.catalogue(role)
    kept: dict[str, Value] = {}
    findings = []

    def refuse(rule: str, name: str, says: str, fix: str, *, lenient: bool = False) -> None:
        form: Literal["value", "quoted"] = "quoted" if rule == "flag-value" else "value"
        findings.append(
            Finding(
                rule,
                "warning" if lenient else "error",
                role,
                (Side(f"spec.roles.{role}.args.{name}", args[name], form=form),),
                says,
                fix,
                version=context.version,
                platform=context.platform,
                source=context.flags_source,
            )
        )

    for name, value in args.items():
        spec = catalogue.find(name)
        if spec is None:
            says, fix = _unknown(context, catalogue, name, role)
            removed = name in catalogue.removed
            refuse("flag-of-another-version" if removed else "flag-unknown", name, says, fix, lenient=context.lenient)
        elif spec.owner is not None:
            refuse("flag-owned", name, "belongs to the operator", f"remove it; {instead(spec.owner, role)}")
        elif (fault := spec.fault(value)) is not None:
            refuse("flag-value", name, fault, remedy(spec, value))
        else:
            kept[name] = spec.normal(value)
    return kept, findings


def _unknown(context: JudgementContext, catalogue: Catalogue, name: str, role: str) -> tuple[str, str]:
    """What is wrong with a flag that does not exist, and a way out that leads to no flag of the operator's."""
    says, fix = catalogue.advise(name)
    if name in catalogue.removed:
        return says, fix
    bare = name.removeprefix("no-")
    near = catalogue.find(catalogue.canonical(bare) or catalogue.nearest(bare) or "")
    if near is None:
        return says, fix
    exact = near.name == catalogue.canonical(bare)
    if exact and bare != name and near.switch:
        says = f"turns {near.name} off, which args do by a value"
        if near.owner is None:
            return says, f"write {near.name}: false"
        return says, f"remove it; {_turned_off(context, near.name, near.owner, role)}"
    if near.owner is not None:
        start = f"remove it: {near.name} belongs to the operator" if exact else f"if you mean {near.name}, remove it"
        return says, f"{start}; {instead(near.owner, role)}"
    return says, fix


def _turned_off(context: JudgementContext, flag: str, owner: Owner, role: str) -> str:
    """What a user does instead of turning off a flag that belongs to the operator."""
    if not isinstance(owner, Field):
        return instead(owner, role)
    sets = context.ruleset.owned.get(flag)
    takes_text = sets is not None and any(leaf.kind == "str" for leaf in leaves_of(sets))
    return f"set {field_of(owner, role)} to " + ('"Off"' if takes_text else "false")


def _owned_variables(context: JudgementContext, role: str, declared: Mapping[str, Any]) -> Iterator[Finding]:
    nodes = declared.get("nodes")
    in_group = isinstance(nodes, int) and nodes > 1
    owned = context.ruleset.environment | (context.ruleset.group_environment if in_group else frozenset())
    for part in ("env", "secretEnv"):
        for name in mapping(declared.get(part)):
            if name in owned:
                yield Finding(
                    "variable-owned",
                    "error",
                    role,
                    (Side(f"spec.roles.{role}.{part}.{name}", "set"),),
                    "belongs to the operator, which sets it on every pod",
                    "remove it",
                    source="docs/reference/api.md",
                )
    for name in mapping(declared.get("secretEnv")):
        if name in context.ruleset.variables - context.ruleset.environment:
            yield Finding(
                "variable-secret",
                "error",
                role,
                (Side(f"spec.roles.{role}.secretEnv.{name}", "set"),),
                "decides what the engine accepts, and a Secret cannot be read to judge it",
                f"set {name} in env",
                source="docs/reference/api.md",
            )


def _acknowledgements(context: JudgementContext, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Acknowledgements without effect. Advisories come and go, so an unknown id is not a reason to refuse."""
    overridable = {rule.id for rule in context.ruleset.rules if rule.overridable}
    known = {advisory.id for advisory in context.advisories} | overridable
    fixed = {*BUILT_IN, *(rule.id for rule in context.ruleset.rules)} - overridable
    here = sorted({finding.rule for finding in findings if finding.may_acknowledge})
    for place, rule_id in enumerate(context.acknowledged):
        field = f"spec.engine.acknowledge[{place}]"
        if rule_id in known or field in context.refused:
            continue
        if rule_id in fixed:
            severity: Severity = "error"
            instead = f"; what can be acknowledged here: {', '.join(here)}" if here else ""
            says, fix = "cannot be overridden", f"remove it{instead}"
        else:
            near = difflib.get_close_matches(rule_id.lower(), sorted(known), 1)
            meant = f"did you mean {near[0]}? If not, remove it" if near else "remove it, or leave it for an advisory"
            severity = "warning"
            says, fix = "has no effect: no rule and no known advisory has this id", meant
        yield Finding("acknowledge-unknown", severity, "", (Side(field, rule_id),), says, fix, source="epd")


def _judgement(context: JudgementContext, findings: Sequence[Finding], processes: Mapping[str, Process]) -> Judgement:
    order = {role: place for place, role in enumerate(("", *names.ROLES))}
    # A severity sorts by its first letter: errors before warnings.
    ranked = sorted(findings, key=lambda result: (result.severity, order.get(result.role, 9), result.rule))
    resolved = {
        role: {value.name: value.value(process) for value in context.ruleset.resolved}
        for role, process in processes.items()
    }
    return Judgement(tuple(ranked), context.version, resolved=resolved)

"""From a spec, or from a bare command line, to every finding about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from epd_operator.api import names
from epd_operator.engines import commandline, version
from epd_operator.engines.advisory import advise
from epd_operator.engines.expression import At, Circumstance, Declared, Leaf, Named, leaves_of
from epd_operator.engines.finding import Finding, Side, plain
from epd_operator.engines.process import Process, mapping, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from epd_operator.engines.advisory import Advisory
    from epd_operator.engines.expression import Expr, Value
    from epd_operator.engines.flag import Catalogue
    from epd_operator.engines.rule import Rule
    from epd_operator.engines.ruleset import Ruleset

SPEC_ROLES: Final = ("encode", "prefill", "decode")


@dataclass(frozen=True)
class Judgement:
    """What the rules say.

    Attributes:
        findings: everything found, errors first.
        version: the version whose rules were applied.
        approximate: the version asked for has no rules of its own.
        resolved: by role, what the engine makes of its flags; names are the engine's own where it has one.
    """

    findings: tuple[Finding, ...]
    version: str = ""
    approximate: bool = False
    resolved: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """Whether nothing was refused."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What refuses it."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


@dataclass(frozen=True)
class Bench:
    """What is the same for all rules of one judgement.

    Attributes:
        bare: a bare command line is judged, on which nothing can be acknowledged.
        lenient: unknown flags are warned of, not refused.
        acknowledged: rule ids that the user takes responsibility for.
        advisories: what is known of single builds.
    """

    ruleset: Ruleset
    version: str
    platform: str
    bare: bool = False
    lenient: bool = False
    acknowledged: frozenset[str] = frozenset()
    advisories: tuple[Advisory, ...] = ()

    def catalogue(self, role: str) -> Catalogue:
        """The flags of a role."""
        return self.ruleset.catalogue(self.version, role)

    @property
    def flags_source(self) -> str:
        """Where the flags can be read up."""
        return f"{self.ruleset.engine_type} {self.version}, its argument parser"


def judge_command_line(
    bench: Bench, argv: Sequence[str], env: Mapping[str, str], checkpoint: Mapping[str, Value] | None = None
) -> Judgement:
    """Judge a bare command line as the engine would.

    Args:
        bench: the engine, its version and platform; `bare` is set.
        argv: the words after the program; the role is read from them, as the engine does.
        env: environment variables.
        checkpoint: facts of another checkpoint than the released one.
    """
    parsed = commandline.parse(argv, bench.catalogue("aggregated"))
    broken = [
        Finding(
            fault.rule,
            "error",
            parsed.role,
            (Side(f"--{fault.flag}" if fault.flag else "command line", fault.value),),
            fault.message,
            fault.fix,
            version=bench.version,
            platform=bench.platform,
            decided_by=fault.decided_by,
            source=bench.flags_source,
        )
        for fault in parsed.faults
    ]
    facts = bench.ruleset.checkpoint if checkpoint is None else checkpoint
    process = Process(parsed.role, bench.platform, bench.ruleset.rank(bench.version), parsed.args, env, facts)
    findings = [*broken, *judge_process(bench, process)]
    return _judgement(bench, findings, {parsed.role: process})


def judge_spec(
    ruleset: Ruleset,
    resolved: version.Resolved,
    document: Mapping[str, Any],
    advisories: tuple[Advisory, ...] = (),
) -> Judgement:
    """Judge a spec; what has the wrong type in it counts as absent.

    Args:
        ruleset: the engine that `spec.engine.type` names.
        resolved: the version whose rules apply.
        document: the whole object as the user wrote it.
        advisories: what is known of single builds.
    """
    spec = mapping(document.get("spec"))
    engine = mapping(spec.get("engine"))
    acknowledged = engine.get("acknowledge")
    bench = Bench(
        ruleset,
        resolved.version,
        engine.get("platform") or ruleset.default_platform,
        lenient=engine.get("versionPolicy") == "Nearest",
        acknowledged=frozenset(map(str, acknowledged)) if isinstance(acknowledged, list) else frozenset(),
        advisories=advisories,
    )
    processes: dict[str, Process] = {}
    findings: list[Finding] = []
    # The served name falls back on the object's own, which is no part of the spec.
    whole = {**spec, "metadata": {"name": read(document, "metadata.name")}}
    for role in SPEC_ROLES:
        declared = read(spec, f"roles.{role}")
        if isinstance(declared, Mapping):
            args, faults = _typed_args(bench, role, mapping(declared.get("args")))
            findings += [*faults, *_owned_variables(bench, role, declared)]
            variables = {name: value for name, value in mapping(declared.get("env")).items() if isinstance(value, str)}
            processes[role] = Process(
                role,
                bench.platform,
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
        findings += judge_process(bench, process)
        findings += advise(
            advisories, str(engine.get("version")), process, bench.catalogue(process.role), bench.acknowledged
        )
    if processes:
        findings += _across(bench, next(iter(processes.values())))
    findings += _acknowledgements(bench)
    return replace(_judgement(bench, findings, processes), approximate=resolved.approximate)


def judge_process(bench: Bench, process: Process) -> Iterator[Finding]:
    """Everything that the rules for a process find."""
    for rule in bench.ruleset.rules_of(bench.version):
        if process.role in rule.roles and rule.when.value(process) and not _rests_on_a_fault(rule, process):
            yield _finding(bench, rule, process, process.role)


def _across(bench: Bench, process: Process) -> Iterator[Finding]:
    for rule in bench.ruleset.rules_of(bench.version):
        if not rule.roles and rule.when.value(process) and not _rests_on_a_fault(rule, process):
            yield _finding(bench, rule, process, "")


def _rests_on_a_fault(rule: Rule, process: Process) -> bool:
    """Whether a side is a flag whose value is wrong by itself: that is told once, and not as a clash as well."""
    for side in rule.sides:
        place = process
        while isinstance(side, At):
            place, side = place.at(side.role), side.body  # noqa: PLW2901 - peeled, not replaced
        leaves = side.settles if isinstance(side, Named) else leaves_of(side)
        if any(leaf.source == "flag" and leaf.name in place.dropped for leaf in leaves):
            return True
    return False


def _finding(bench: Bench, rule: Rule, process: Process, role: str) -> Finding:
    shown = {name: plain(expression.value(process)) for name, expression in rule.shows.items()}
    acknowledged = rule.overridable and rule.id in bench.acknowledged
    excused = acknowledged or (rule.hole and bench.bare)
    return Finding(
        rule=rule.id,
        severity="warning" if excused else rule.severity,
        role=role,
        sides=tuple(_sides(bench, rule.sides, process)),
        says=rule.says.format(**shown),
        fix=rule.fix.format(**shown),
        version=bench.version,
        platform=bench.platform,
        inferred=bool(rule.decided_by) and bench.version not in rule.stated,
        overridable=rule.overridable,
        acknowledged=acknowledged,
        decided_by=rule.decided_by,
        source=rule.source,
    )


def _sides(bench: Bench, sides: Iterable[Expr], process: Process) -> Iterator[Side]:
    for side in sides:
        place = process
        bare = side
        while isinstance(bare, At):
            place, bare = place.at(bare.role), bare.body
        yield _side(bench, bare, place)


def _side(bench: Bench, side: Expr, process: Process) -> Side:
    """Where a value comes from: the first thing that is given among those which settle it."""
    if isinstance(side, Circumstance):
        return _circumstance(bench, side, process)
    if isinstance(side, Declared):
        return Side(f"spec.roles.{side.role}", "present" if process.declares(side.role) else None)
    leaves = side.settles if isinstance(side, Named) else leaves_of(side)
    if not leaves:
        return Side(side.name.replace("_", "-") if isinstance(side, Named) else "value", None, side.value(process))
    leaf = next((leaf for leaf in leaves if _written(bench, leaf, process) is not None), leaves[0])
    effective = None if isinstance(side, Leaf) else side.value(process)
    return Side(_place(bench, leaf, process), _written(bench, leaf, process), effective)


def _circumstance(bench: Bench, side: Circumstance, process: Process) -> Side:
    if side.name == "platform":
        return Side("--platform" if bench.bare else "spec.engine.platform", process.platform)
    return Side("role" if bench.bare else f"spec.roles.{process.role}", process.role)


def _place(bench: Bench, leaf: Leaf, process: Process) -> str:
    if leaf.source == "flag":
        return _flag_place(bench, leaf.name, process)
    if leaf.source == "spec":
        return leaf.name if leaf.name.startswith("metadata.") else f"spec.{leaf.name}"
    if leaf.source == "model":
        return f"the checkpoint's {leaf.name}"
    role = f"spec.roles.{process.role}"
    return f"{role}.{leaf.name}" if leaf.source == "field" else leaf.name if bench.bare else f"{role}.env.{leaf.name}"


def _flag_place(bench: Bench, name: str, process: Process) -> str:
    if bench.bare:
        return f"--{name}"
    spec = bench.catalogue(process.role).find(name)
    if spec is None or spec.owner is None:
        return f"spec.roles.{process.role}.args.{name}"
    owner = spec.owner.split()[0].replace("<role>", process.role)
    return owner if owner.startswith("spec.") else f"spec.roles.{process.role}"


def _written(bench: Bench, leaf: Leaf, process: Process) -> Value:
    if leaf.source == "flag" and leaf.name in process.owned:
        place = _place(bench, leaf, process)
        if place.startswith("spec."):
            found: Value = read(process.document, place.removeprefix("spec."))
            return leaf.value(process) if isinstance(found, Mapping) else found
    return (
        process.field(leaf.name)
        if leaf.source == "field"
        else (process.spec(leaf.name) if leaf.source == "spec" else leaf.value(process))
    )


def _typed_args(bench: Bench, role: str, args: Mapping[str, Any]) -> tuple[dict[str, Value], list[Finding]]:
    """The flags with values of the right type, and a finding for each of the others."""
    catalogue = bench.catalogue(role)
    kept: dict[str, Value] = {}
    findings = []

    def refuse(rule: str, name: str, says: str, fix: str, *, lenient: bool = False) -> None:
        findings.append(
            Finding(
                rule,
                "warning" if lenient else "error",
                role,
                (Side(f"spec.roles.{role}.args.{name}", args[name]),),
                says,
                fix,
                version=bench.version,
                platform=bench.platform,
                source=bench.flags_source,
            )
        )

    for name, value in args.items():
        spec = catalogue.find(name)
        if spec is None:
            says, fix = catalogue.advise(name)
            removed = name in catalogue.removed
            refuse("flag-of-another-version" if removed else "flag-unknown", name, says, fix, lenient=bench.lenient)
        elif spec.owner is not None:
            refuse("flag-owned", name, "belongs to the operator", f"remove it; {_setter(spec.owner, role)}")
        elif (fault := spec.fault(value)) is not None:
            refuse("flag-value", name, fault, "correct the value")
        else:
            kept[name] = spec.normal(value)
    return kept, findings


def _setter(owner: str, role: str) -> str:
    owner = owner.replace("<role>", role)
    return f"{owner} sets it" if owner.startswith("spec.") else owner


def _owned_variables(bench: Bench, role: str, declared: Mapping[str, Any]) -> Iterator[Finding]:
    for part in ("env", "secretEnv"):
        for name in mapping(declared.get(part)):
            if name in bench.ruleset.environment:
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
        if name in bench.ruleset.variables - bench.ruleset.environment:
            yield Finding(
                "variable-secret",
                "error",
                role,
                (Side(f"spec.roles.{role}.secretEnv.{name}", "set"),),
                "decides what the engine accepts, and a Secret cannot be read to judge it",
                f"set {name} in env",
                source="docs/reference/api.md",
            )


def _acknowledgements(bench: Bench) -> Iterator[Finding]:
    known = {rule.id: rule for rule in bench.ruleset.rules}
    for rule_id in sorted(bench.acknowledged - {advisory.id for advisory in bench.advisories}):
        rule = known.get(rule_id)
        if rule is None or not rule.overridable:
            overridable = ", ".join(sorted(rule.id for rule in known.values() if rule.overridable))
            yield Finding(
                "acknowledge-unknown",
                "error",
                "",
                (Side("spec.engine.acknowledge", rule_id),),
                "is no rule" if rule is None else "cannot be overridden",
                f"remove it; rules that can be: {overridable or 'none'}",
                source="epd",
            )


def _judgement(bench: Bench, findings: Sequence[Finding], processes: Mapping[str, Process]) -> Judgement:
    order = {role: place for place, role in enumerate(("", *names.ROLES))}
    # A severity sorts by its first letter: errors before warnings.
    ranked = sorted(findings, key=lambda found: (found.severity, order.get(found.role, 9), found.rule))
    resolved = {
        role: {value.name: value.value(process) for value in bench.ruleset.resolved}
        for role, process in processes.items()
    }
    return Judgement(tuple(ranked), bench.version, resolved=resolved)

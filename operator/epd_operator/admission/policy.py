"""The policies: one for each engine, over all of its versions, and one that asks for a version with rules.

The versions of an engine share nearly all of their rules, so a policy for each would only be as large several times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from epd_operator.admission import flags, version
from epd_operator.admission.message import Wording, lines
from epd_operator.api.names import GROUP, PLURAL
from epd_operator.api.names import VERSION as API_VERSION
from epd_operator.engines import table
from epd_operator.rules.cel import NULL, Program, literal, quoted
from epd_operator.rules.expression import FALSE, Const, Expr, Leaf, Since, declared
from epd_operator.rules.fold import Blind, Folder
from epd_operator.rules.judgement import SPEC_ROLES
from epd_operator.rules.owner import label_of, place_of
from epd_operator.rules.rule import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from epd_operator.rules.flag import FlagSpec
    from epd_operator.rules.rule import Rule
    from epd_operator.rules.ruleset import Ruleset

PREFIX: Final[Mapping[str, str]] = {"prefill": "p", "decode": "d", "encode": "e"}
MESSAGE: Final = 5000
"""Bytes of a message that the API server surely passes on; its limit is 5120, and one with a line break is dropped."""

_LIST: Final = 30_000
"""Characters of a list of findings in one expression."""

_EVERYTHING: Final = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
"""What the API server fills in, written out: else a tool that compares what it applied sees a difference."""

_UNSEEN: Final[Mapping[str, str]] = {
    "flag-value": "what is inside a string that holds JSON or a LoRA path, and numbers spelled as only Python does",
}


@dataclass(frozen=True)
class Broken:
    """When a rule is broken by a role.

    Attributes:
        condition: The rule's condition, folded, without the cases in which a guess decides.
        blind: The guesses that were left out.
    """

    rule: Rule
    role: str
    condition: Expr
    blind: frozenset[Blind]

    @property
    def possible(self) -> bool:
        """Whether a policy can find it broken at all."""
        return not isinstance(self.condition, Const) or bool(self.condition.constant)


def policies() -> list[dict[str, Any]]:
    """Every policy of this release."""
    return [_versions(), *map(policy, table.RULESETS.values())]


def binding(bound: Mapping[str, Any]) -> dict[str, Any]:
    """What puts a policy into force in every namespace."""
    name = bound["metadata"]["name"]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": dict(_EVERYTHING)},
    }


def inexpressible(ruleset: Ruleset) -> Mapping[str, str]:
    """Rules that a policy cannot apply to every spec, by id, with what it cannot see."""
    unseen: dict[str, set[str]] = {}
    for broken in _broken(ruleset, folder_of(ruleset)):
        for blind in broken.blind:
            unseen.setdefault(broken.rule.id, set()).add(blind.name)
    listed = {rule: ", ".join(sorted(names)) for rule, names in unseen.items()}
    return dict(sorted({**_UNSEEN, **listed}.items()))


def policy(ruleset: Ruleset) -> dict[str, Any]:
    """The policy that refuses what the rules of an engine refuse."""
    folder = folder_of(ruleset)
    program = Program(lambda role, leaf: _leaf(ruleset, role, leaf), PREFIX)
    _define_inputs(program, ruleset)
    lists = [_define_flags(program, ruleset, role) for role in SPEC_ROLES]
    lists += [_variables(program, ruleset, role) for role in SPEC_ROLES]
    lists.append(_acknowledged(program, ruleset))
    broken = [item for item in _broken(ruleset, folder) if item.rule.severity == "error" and item.possible]
    for one in broken:
        program.expect(one.condition)
    wording = Wording(program, folder, lambda role, leaf: _place(ruleset, role, leaf))
    item = " + ".join(_lists(program, [_line(program, wording, one) for one in broken])) or "[]"
    lists.append(program.define("lines", lines(f"({item})", wording.define(), PREFIX)))
    conditions = {"engine": version.of_engine(ruleset), "version": version.judged(ruleset)}
    head = f"'{ruleset.engine_type} ' + variables.version + ' on ' + variables.platform + ' would not run this: ' + "
    return _object(ruleset.engine_type.lower(), conditions, program.variables, lists, head)


def _versions() -> dict[str, Any]:
    variables = {}
    for ruleset in table.RULESETS.values():
        name = f"version_{ruleset.engine_type.lower()}"
        variables[name] = f"{version.of_engine(ruleset)} ? ({version.refusals(ruleset)}) : []"
    lists = [f"variables.{name}" for name in variables]
    return _object("engine-version", {}, variables, lists, "")


def _object(
    name: str, matching: Mapping[str, str], variables: Mapping[str, str], lists: list[str], head: str
) -> dict[str, Any]:
    conditions = {
        # Labels and finalizers of an object that newer rules refuse stay editable.
        "spec-is-new": "request.operation == 'CREATE' || object.spec != oldObject.spec",
        "object-stays": "!has(object.metadata.deletionTimestamp)",
        **matching,
    }
    message = f"({head}variables.findings.join('; ')).replace('\\n', ' ').replace('\\r', ' ')"
    every = {**variables, "findings": " + ".join(lists), "message": message}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [GROUP],
                        "apiVersions": [API_VERSION],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": [PLURAL],
                        "scope": "*",
                    }
                ],
                **_EVERYTHING,
            },
            "matchConditions": [{"name": key, "expression": text} for key, text in conditions.items()],
            "variables": [{"name": key, "expression": text} for key, text in every.items()],
            "validations": [
                {
                    "expression": "size(variables.findings) == 0",
                    "messageExpression": _cut("variables.message"),
                    "reason": "Forbidden",
                }
            ],
        },
    }


def _cut(text: str) -> str:
    """CEL of a text cut by bytes, which CEL cannot do: a character has one to four of them."""
    cuts = "".join(
        f"size({text}) > {MESSAGE // most} && size(bytes({text}.substring(0, {MESSAGE // most}))) <= {MESSAGE} ? "
        f"{text}.substring(0, {MESSAGE // most}) + ' ...' : "
        for most in (1, 2, 3)
    )
    return f"size(bytes({text})) <= {MESSAGE} ? {text} : {cuts}{text}.substring(0, {MESSAGE // 4}) + ' ...'"


def folder_of(ruleset: Ruleset) -> Folder:
    """Folds the expressions of an engine, over all of its versions and for the released checkpoint."""
    return Folder(None, ruleset.checkpoint, ruleset.owned, lambda role, name: _flag(ruleset, role, name) is not None)


def _flag(ruleset: Ruleset, role: str, name: str) -> FlagSpec | None:
    """The flag that a user may give to some version, as the newest of these has it."""
    for judged in reversed(ruleset.versions):
        spec = ruleset.catalogue(judged, role).find(name)
        if spec is not None and spec.owner is None:
            return spec
    return None


def _broken(ruleset: Ruleset, folder: Folder) -> Iterator[Broken]:
    for role in ("", *SPEC_ROLES):
        present = folder.fold(declared(role), role).expr if role else folder.const(True)
        result = list(_broken_by(ruleset, folder, role, present))
        # Where a role is refused in any form, its other faults need not be reported at once.
        outright = [one for one in result if one.condition is present and not one.rule.overridable]
        yield from outright or result


def _broken_by(ruleset: Ruleset, folder: Folder, role: str, present: Expr) -> Iterator[Broken]:
    for rule in sorted(ruleset.rules, key=lambda rule: rule.id):
        if role in rule.roles or (not role and not rule.roles):
            folded = folder.fold(_in_its_versions(ruleset, rule), role or "prefill")
            sure = [folder.negate(blind.when) for blind in sorted(folded.blind, key=lambda blind: blind.name)]
            condition = folder.every([present, *sure, folded.expr])
            if folded.blind or condition is not folder.const(False):
                yield Broken(rule, role, condition, folded.blind)


def _in_its_versions(ruleset: Ruleset, rule: Rule) -> Expr:
    broken = Since(ruleset.rank(rule.until), FALSE, rule.when) if rule.until else rule.when
    return Since(ruleset.rank(rule.since), broken, FALSE) if rule.since else broken


def _define_inputs(program: Program, ruleset: Ruleset) -> None:
    # The type checker knows the schema, in which nothing may be null: dyn lets an absent field be compared.
    program.define("spec", "dyn(object.spec)")
    default = quoted(ruleset.default_platform)
    program.define("platform", f"string(variables.spec.engine.?platform.orValue({default}))")
    program.define("strict", "variables.spec.engine.?versionPolicy.orValue('Strict') != 'Nearest'")
    program.define("rank", version.rank(ruleset))
    program.define("version", f"{literal(ruleset.versions)}[variables.rank]")
    program.define("acknowledged", "variables.spec.engine.?acknowledge.orValue([])")
    for role, prefix in PREFIX.items():
        program.define(prefix, f"variables.spec.roles.?{role}.?args.orValue({{}})")
        program.define(f"{prefix}_env", f"variables.spec.roles.?{role}.?env.orValue({{}})")


def _define_flags(program: Program, ruleset: Ruleset, role: str) -> str:
    """The variables of a role's flags; returns the list of what is wrong with them."""
    by_role = {name: _catalogues(ruleset, name) for name in SPEC_ROLES}
    same = [other for other in SPEC_ROLES if by_role[other] == by_role[role]]
    name = "flags" if len(same) == len(SPEC_ROLES) else f"flags_{PREFIX[same[0]]}"
    for key, text in by_role[role].items():
        program.define(f"{name}_{key}", text)
    args = f"variables.{PREFIX[role]}"
    bad = program.define(f"{PREFIX[role]}_bad", flags.bad_values(args, name))
    program.define(f"{PREFIX[role]}_good", f"{args}.filter(flag, !(flag in {bad}))")
    return program.define(f"{PREFIX[role]}_flags", flags.findings(role, args, bad, name))


def _catalogues(ruleset: Ruleset, role: str) -> dict[str, str]:
    """The variables of the catalogue, chosen by version where versions differ."""
    texts = [flags.catalogue_variables(ruleset.catalogue(judged, role)) for judged in ruleset.versions]
    chosen = dict(texts[-1])
    for rank, older in enumerate(texts[:-1]):
        for key, text in older.items():
            if text != texts[-1][key]:
                chosen[key] = f"variables.rank == {rank} ? {text} : {chosen[key]}"
    return chosen


def _variables(program: Program, ruleset: Ruleset, role: str) -> str:
    """The list of what is wrong with the names of a role's variables."""
    env = f"variables.{PREFIX[role]}_env"
    secrets = program.define(f"{PREFIX[role]}_secret", f"variables.spec.roles.?{role}.?secretEnv.orValue({{}})")
    owned = f"name in {literal(sorted(ruleset.environment))}"
    if ruleset.group_environment:
        group = literal(sorted(ruleset.group_environment))
        owned += f" || (name in {group} && variables.spec.roles.?{role}.?nodes.orValue(1) > 1)"
    result = [
        f"{held}.filter(name, {owned}).map(name, '[variable-owned] spec.roles.{role}.{part}.' + name + "
        "' = set: belongs to the operator, which sets it on every pod: remove it')"
        for part, held in (("env", env), ("secretEnv", secrets))
    ]
    judged = sorted(ruleset.variables - ruleset.environment)
    result.append(
        f"{secrets}.filter(name, name in {literal(judged)}).map(name, '[variable-secret] spec.roles.{role}.secretEnv.' "
        "+ name + ' = set: decides what the engine accepts, and a Secret cannot be read to judge it: set ' + name + "
        "' in env')"
    )
    return program.define(f"{PREFIX[role]}_variables", " + ".join(result))


def _acknowledged(program: Program, ruleset: Ruleset) -> str:
    overridable = {rule.id for rule in ruleset.rules if rule.overridable}
    # An id that no rule has may be an advisory's, which no policy knows of.
    fixed = sorted({*BUILT_IN, *(rule.id for rule in ruleset.rules)} - overridable)
    return program.define(
        "acknowledge",
        f"variables.acknowledged.filter(rule, rule in {literal(fixed)})"
        ".map(rule, '[acknowledge-unknown] spec.engine.acknowledge = ' + rule + ': cannot be overridden: remove it')",
    )


def _line(program: Program, wording: Wording, result: Broken) -> str:
    terms = [program.text(result.condition, 3)]
    if result.rule.overridable:
        terms.append(f"!({quoted(result.rule.id)} in variables.acknowledged)")
    return f"{' && '.join(terms)} ? {wording.finding(result.rule, result.role or 'prefill')} : ''"


def _lists(program: Program, lines: list[str]) -> list[str]:
    """Lines in as many lists as keep an expression readable for the API server."""
    groups: list[list[str]] = [[]]
    for line in lines:
        if sum(map(len, groups[-1])) + len(line) > _LIST:
            groups.append([])
        groups[-1].append(line)
    return [
        program.define(f"found{place}", "[\n" + ",\n".join(group) + "\n].filter(rule, rule != '')")
        for place, group in enumerate(groups)
        if group
    ]


def _leaf(ruleset: Ruleset, role: str, leaf: Leaf) -> str:
    """CEL of a leaf; see `Program.leaf`."""
    prefix = PREFIX.get(role, "")
    if leaf.source == "flag":
        spec = _flag(ruleset, role, leaf.name)
        if spec is None:
            return NULL
        return flags.value_of(spec, f"variables.{prefix}", f"variables.{prefix}_good")
    if leaf.source == "env":
        name = quoted(leaf.name)
        values = f"variables.{prefix}_env"
        return f"{name} in {values} ? dyn({values}[{name}]) : {NULL}"
    path = f"roles.{role}.{leaf.name}" if leaf.source == "field" else leaf.name
    root = "variables.spec"
    if path.startswith("metadata."):
        root = "dyn(object)"
    result = f"{root}{''.join(f'.?{part}' for part in path.split('.'))}.orValue({NULL})"
    spelled = f"string({result})"
    match leaf.unit:
        case "bytes":
            return f"{result} != null && isQuantity({spelled}) ? dyn(quantity({spelled}).asApproximateFloat()) : {NULL}"
        case "seconds":
            # A duration in the spec is a whole number of milliseconds, and the schema holds for all that arrives here.
            return f"{result} != null ? dyn(double(duration({spelled}).getMilliseconds()) / 1000.0) : {NULL}"
        case _:
            number = f"{result} != null ? dyn(double({result})) : {NULL}"
            return number if leaf.kind == "float" else result


def _place(ruleset: Ruleset, role: str, leaf: Leaf) -> str:
    """Where a user changes a leaf, as `rules.side` says it."""
    catalogue = ruleset.catalogue(ruleset.versions[-1], role)
    label = label_of(leaf, catalogue) if leaf.name in ruleset.owned else None
    return label or place_of(leaf, role, catalogue)

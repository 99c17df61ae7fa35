"""The page of all rules, made from the rules themselves."""

from __future__ import annotations

import string
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Final

from epd_operator.admission import policy
from epd_operator.engines import sglang, table, validation
from epd_operator.rules import version as versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from epd_operator.rules.rule import Rule
    from epd_operator.rules.ruleset import Ruleset

HEAD: Final = """# Rules

{note}What the engine would refuse at start, after minutes of loading weights, is refused before a pod exists: by
`epd validate`, by the API server at `kubectl apply`, and by the operator in the condition `Valid`. All three are made
from the {count} rules below.

**How to read a finding.** `[rule] what is written, what it becomes: the rule: the way out`. Every part names the
field that sets it. An error refuses the spec: nothing is created or changed, and what ran before keeps running. A
warning says what the engine will do that you may not expect.

**How to go on all the same.** A rule marked *overridable* gives way when its id stands in the spec; the finding
becomes a warning, and `status.acknowledged` shows it:

```yaml
spec:
  engine:
    acknowledge: [rule-id]
```

**Versions.** SGLang's rules were read in, and run against, the version named *stated*; for the others that a rule
covers they are *inferred*, and a finding says so. The order of versions is {versions}.

**At `kubectl apply`.** The chart installs ValidatingAdmissionPolicies (value `admission.enabled`), one for each
engine. They apply every rule that is an error, and say everything at once. What a policy cannot see it admits, and the
operator refuses it a moment later in `Valid`. That is so for these rules, for the rest of each only. Warnings are for
`epd validate`.

{unseen}
"""

BUILT_IN: Final[Mapping[str, tuple[str, str]]] = {
    validation.STRUCTURE: (
        "a field is unknown, of the wrong type, or outside its limits",
        "yes: the schema of the resource",
    ),
    validation.VERSION: ("the version is neither a profile nor a release that is newer than one", "yes"),
    "flag-unknown": ("`args` holds a flag that this version does not have; a warning under `Nearest`", "yes"),
    "flag-of-another-version": ("`args` holds another version's spelling of a flag; a warning under `Nearest`", "yes"),
    "flag-owned": ("`args` holds a flag that the operator sets from a field", "yes"),
    "flag-value": ("a flag's value is of the wrong type, out of bounds, or not one of the choices", ""),
    "acknowledge-unknown": (
        "`acknowledge` names a rule that is not overridable; a warning where no rule has the id, as advisories change",
        "yes",
    ),
    "variable-owned": ("`env` or `secretEnv` holds a variable that the operator sets on every pod", "yes"),
    "variable-secret": ("`secretEnv` holds a variable that a rule reads, and nobody can judge a Secret", "yes"),
}


def text(note: str) -> str:
    """The whole page.

    Args:
        note: Says that it is generated.
    """
    unseen: dict[str, str] = {}
    for ruleset in table.RULESETS.values():
        unseen |= policy.inexpressible(ruleset)
    ids = {rule.id for ruleset in table.RULESETS.values() for rule in ruleset.rules} | set(BUILT_IN)
    listed = "\n".join(f"- [`{rule}`](#{rule}): {reason}" for rule, reason in sorted(unseen.items()))
    head = HEAD.format(
        note=note,
        count=len(ids),
        versions=", ".join(f"`{name}`" for name in versions.KNOWN),
        unseen=listed,
    )
    sections = [_built_in(unseen)]
    reported: set[int] = set()
    for title, module, ruleset in _modules():
        held = {id(rule) for rule in module.RULES} - reported
        reported |= held
        sections.append(_section(title, module, [rule for rule in ruleset.rules if id(rule) in held], ruleset, unseen))
    for ruleset in table.RULESETS.values():
        rest = [rule for rule in ruleset.rules if id(rule) not in reported]
        sections.append(_section(ruleset.engine_type, None, rest, ruleset, unseen))
    return head + "\n" + "\n".join(section for section in sections if section)


def _modules() -> Iterator[tuple[str, ModuleType, Ruleset]]:
    """Subject, module and ruleset of every module that holds rules for specs."""
    yield "Every engine", import_module("epd_operator.engines.shared"), table.RULESETS["SGLang"]
    for item in iter_modules(sglang.__path__):
        module = import_module(f"{sglang.__name__}.{item.name}")
        if getattr(module, "RULES", ()):
            yield f"SGLang: {item.name.replace('hicache', 'hierarchical cache')}", module, table.RULESETS["SGLang"]


def _section(
    title: str, module: ModuleType | None, rules: list[Rule], ruleset: Ruleset, unseen: Mapping[str, str]
) -> str:
    if not rules:
        return ""
    summary = (module.__doc__ or "").split("\n\n")[0].replace("\n", " ") + "\n\n" if module else ""
    return f"## {title}\n\n{summary}" + "\n".join(_entry(rule, ruleset, unseen) for rule in rules)


def _entry(rule: Rule, ruleset: Ruleset, unseen: Mapping[str, str]) -> str:
    override = ", overridable" if rule.overridable else ""
    accepted = " The engine accepts it." if rule.operator_only else ""
    roles = ", ".join(role for role in rule.roles if role != "aggregated") or "the spec as a whole"
    lines = [
        f"### `{rule.id}`\n",
        f"**{rule.severity}{override}**: {_words(rule.says)}.{accepted}  \nWay out: {_words(rule.fix)}.\n",
        f"- judged: {roles}; {_covered(rule, ruleset)}",
        *([f"- decided by: `{rule.decided_by}`"] if rule.decided_by else []),
        f"- source: {rule.source}",
        f"- at `kubectl apply`: {_seen(rule, unseen)}\n",
    ]
    return "\n".join(lines)


def _covered(rule: Rule, ruleset: Ruleset) -> str:
    """Versions that have the rule, and where that was read."""
    covered = [name for name in ruleset.versions if any(rule is one for one in ruleset.rules_of(name))]
    if len(ruleset.versions) == 1 or not rule.decided_by:
        return "every version" if len(covered) == len(ruleset.versions) else ", ".join(covered)
    marked = [f"{name} ({'stated' if name in rule.stated else 'inferred'})" for name in covered]
    return ", ".join(marked)


def _seen(rule: Rule, unseen: Mapping[str, str]) -> str:
    if rule.severity == "warning":
        return "no, it is a warning"
    return f"where it can be seen; not {unseen[rule.id]}" if rule.id in unseen else "yes"


def _words(text: str) -> str:
    """A template as prose: computed values by their names."""
    parts = (
        plain + ("" if name is None else f"*{name.replace('_', ' ')}*")
        for plain, name, _spec, _conversion in string.Formatter().parse(text)
    )
    return "".join(parts).replace("|", "\\|")


def _built_in(unseen: Mapping[str, str]) -> str:
    entries = []
    for rule, (says, whole) in BUILT_IN.items():
        seen = whole or f"where it can be seen; not {unseen[rule]}"
        entries.append(f"### `{rule}`\n\n**error**: {says}.\n\n- at `kubectl apply`: {seen}\n")
    return "## Structure, versions and flags\n\n" + "\n".join(entries)

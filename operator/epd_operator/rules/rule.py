"""A rule: what an engine refuses, or what a user should know, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.rules.expression import Expr

Severity: TypeAlias = Literal["error", "warning"]

ROLES: Final = ("encode", "prefill", "decode", "aggregated")
SERVING: Final = ("prefill", "decode", "aggregated")
BUILT_IN: Final[Mapping[str, str]] = {
    "acknowledge-unknown": "an id in acknowledge does not name an overridable rule",
    "engine-version": "the version has no rules",
    "flag-ambiguous": "a shortened flag could be several",
    "flag-of-another-version": "a flag is spelled as another version spells it",
    "flag-owned": "a flag belongs to the operator, which sets it from a field",
    "flag-unjudged": "a flag cannot be judged, or ends the engine",
    "flag-unknown": "this version does not have the flag",
    "flag-value": "a flag's value is of the wrong type, out of bounds, or not one of the choices",
    "structure": "a field is unknown, of the wrong type, or outside its limits",
    "variable-owned": "a variable belongs to the operator, which sets it on every pod",
    "variable-secret": "a variable that rules read stands in a Secret",
}
"""Findings that no rule makes, by id, and what they mean; none of them can be overridden."""
_ID: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Rule:
    """One thing that must not be, or that a user should know.

    Attributes:
        id: Words with dashes, for ever the same: people acknowledge and search by it.
        when: True when the rule is broken.
        sides: What clashes, at least one; flags, variables, fields, or resolved values. A finding shows what stands
            there and which field set it.
        says: The rule as a clause that reads well behind the sides and a colon, such as `decoder replay needs
            ...` or `must be ...`; `{name}` stands for a value of `shows`.
        fix: The way out, a clause in the imperative.
        source: Where it can be read up.
        severity: `error` refuses the spec.
        decided_by: Module and function of the engine that decides it; empty when no engine does.
        roles: Whose process is judged; empty for a rule about the spec as a whole, whose parts are all `at(...)`.
        since: First version, in the order of profiles, that has it; empty: the first.
        until: First version that no longer has it; empty: never.
        stated: Versions whose own source was read or run; for others that it covers the finding says "inferred".
        operator_only: The engine accepts it although it should not, so only the operator refuses it: an error on a
            spec, a warning on a bare command line.
        overridable: `spec.engine.acknowledge` may turn the error into a warning.
        shows: Computed values that `says` and `fix` speak of.
    """

    id: str
    when: Expr
    sides: tuple[Expr, ...]
    says: str
    fix: str
    source: str
    severity: Severity = "error"
    decided_by: str = ""
    roles: tuple[str, ...] = SERVING
    since: str = ""
    until: str = ""
    stated: tuple[str, ...] = ("0.5.23",)
    operator_only: bool = False
    overridable: bool = False
    shows: Mapping[str, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"rule ids are words with dashes: {self.id!r}")
        if not self.sides or not set(self.roles) <= set(ROLES):
            raise ValueError(f"rule {self.id} needs sides, and roles among {', '.join(ROLES)}")
        if self.when.kind != "bool" or self.when.nullable:
            raise TypeError(f"rule {self.id} must be plain true or false")
        if self.operator_only and not self.overridable:
            raise ValueError(f"rule {self.id} is refused by the operator only, so it must be overridable")

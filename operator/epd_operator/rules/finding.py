"""What a rule found in one spec or on one command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.rules.rule import Severity


@dataclass(frozen=True)
class Side:
    """One part of a clash.

    A value that an engine computes is shown in one of two ways. Where it is the resolved value of the very flag that is
    shown, it stands behind that flag: `page-size = 1, which becomes 256`. Where it is another quantity, everything
    written that settles it comes first, each as a side of its own, and then a `derived` side with its name:
    `tp-size = 8, enable-prefill-cp = true, so attn-tp-size = 1`.

    Attributes:
        field: Where a user changes it: a path in the spec, or a flag of a command line; the name of a derived quantity.
        written: What stands there; None when nothing does, or nothing that has a value worth showing.
        effective: The value that the engine resolves it to; None when that is what is written.
        form: `value` shows what is written or that nothing is; `quoted` does so with strings in quotes, for faults of
            type; `alone` is for what is there without a value, such as
            an object or a flag that lacks one; `derived` is a quantity that no field sets by itself.
    """

    field: str
    written: Any = None
    effective: Any = None
    form: Literal["value", "quoted", "alone", "derived"] = "value"

    @override
    def __str__(self) -> str:
        effective = "" if self.effective is None else plain(self.effective)
        if self.form == "derived":
            return f"so {self.field} = {effective}"
        if self.form == "alone":
            return self.field
        if self.written is None:
            return f"{self.field} not set" + (f", so {effective}" if effective else "")
        written = plain(self.written, quote=self.form == "quoted")
        return f"{self.field} = {written}" + (f", which becomes {effective}" if effective else "")


@dataclass(frozen=True)
class Finding:
    """One broken rule, with everything needed to act on it.

    Attributes:
        rule: Id of the rule.
        severity: `error` refuses.
        role: Whose process is concerned; empty when it is the spec as a whole.
        sides: What clashes.
        says: The rule as a clause.
        fix: The way out.
        version: Engine version whose rules were applied; empty when no engine decides.
        platform: Platform it was judged for.
        inferred: The rule was taken over from a neighbouring version.
        overridable: `spec.engine.acknowledge` may turn the error into a warning.
        acknowledged: It has done so.
        decided_by: Module and function of the engine that decides.
        source: Where the rule can be read up.
    """

    rule: str
    severity: Severity
    role: str
    sides: tuple[Side, ...]
    says: str
    fix: str
    version: str = ""
    platform: str = ""
    inferred: bool = False
    overridable: bool = False
    acknowledged: bool = False
    decided_by: str = ""
    source: str = ""

    @override
    def __str__(self) -> str:
        shown = ", ".join(str(side) for side in self.sides)
        judged = f" ({self.version} on {self.platform}{', inferred' if self.inferred else ''})" if self.version else ""
        override = f"; or add {self.rule} to spec.engine.acknowledge" if self.may_acknowledge else ""
        way_out = f": {self.fix}{override}" if self.fix else override
        return f"[{self.rule}] {shown}: {self.says}{way_out}{judged}"

    @property
    def may_acknowledge(self) -> bool:
        """Whether acknowledging is a way out."""
        return self.overridable and self.severity == "error"

    def as_json(self) -> Mapping[str, Any]:
        """The finding for machines; the keys are part of the interface."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "role": self.role or None,
            "sides": [
                {"field": side.field, "written": side.written, "effective": side.effective} for side in self.sides
            ],
            "message": self.says,
            "fix": self.fix,
            "engineVersion": self.version or None,
            "platform": self.platform or None,
            "inferred": self.inferred,
            "overridable": self.overridable,
            "acknowledged": self.acknowledged,
            "decidedBy": self.decided_by or None,
            "source": self.source,
        }


def plain(value: Any, *, quote: bool = False) -> str:
    """A value as YAML spells it, cut to a readable length, with strings in quotes where that matters."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(plain(item, quote=quote) for item in value)}]"
    else:
        text = f"'{value}'" if quote and isinstance(value, str) else "null" if quote and value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

"""What a rule found in one spec or on one command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.engines.rule import Severity


@dataclass(frozen=True)
class Side:
    """One part of a clash.

    Attributes:
        field: where a user changes it: a path in the spec, or a flag of a command line.
        written: what stands there; None when nothing does.
        effective: what the engine makes of it; None when that is the same.
    """

    field: str
    written: Any = None
    effective: Any = None

    @override
    def __str__(self) -> str:
        effective = "" if self.effective is None or self.effective == self.written else plain(self.effective)
        if self.written is None:
            return f"{self.field} not set" + (f", so {effective}" if effective else "")
        return f"{self.field} = {plain(self.written)}" + (f", which becomes {effective}" if effective else "")


@dataclass(frozen=True)
class Finding:
    """One broken rule, with everything needed to act on it.

    Attributes:
        rule: id of the rule.
        severity: `error` refuses.
        role: whose process is concerned; empty when it is the spec as a whole.
        sides: what clashes.
        says: the rule in words.
        fix: the way out.
        version: engine version whose rules were applied; empty when no engine decides.
        platform: platform it was judged for.
        inferred: the rule was taken over from a neighbouring version.
        overridable: `spec.engine.acknowledge` may turn the error into a warning.
        acknowledged: it has done so.
        decided_by: module and function of the engine that decides.
        source: where the rule can be read up.
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
        return f"[{self.rule}] {shown}: {self.says}: {self.fix}{override}{judged}"

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


def plain(value: Any) -> str:
    """A value as YAML spells it, cut to a readable length."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(plain(item) for item in value)}]"
    else:
        text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

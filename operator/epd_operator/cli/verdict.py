"""One judged object, and the totals of many."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.cli.document import Document, Unreadable
    from epd_operator.cli.position import Position
    from epd_operator.rules.finding import Finding, Side
    from epd_operator.rules.judgement import Judgement

COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Verdict:
    """A judgement with what was judged.

    Attributes:
        judgement: What the rules say.
        document: The object; None for a bare command line.
        engine: Engine and version that were judged, such as `SGLang 0.5.23`; empty when no rules were.
        platform: Platform that it was judged for; empty when no rules were.
        strict: A warning that nobody acknowledged refuses as well.
        overrides: What the user asked to be judged instead of what the object says, field to option.
    """

    judgement: Judgement
    document: Document | None = None
    engine: str = ""
    platform: str = ""
    strict: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """Whether it may be applied."""
        findings = any(not finding.acknowledged for finding in self.judgement.findings)
        return not self.errors and not (self.strict and findings)

    @property
    def errors(self) -> int:
        """Number of errors."""
        return len(self.judgement.errors)

    @property
    def warnings(self) -> int:
        """Number of warnings."""
        return len(self.judgement.findings) - self.errors

    @property
    def file(self) -> str:
        """Name of the file, or what stands for one."""
        return COMMAND_LINE if self.document is None else self.document.source.name

    @property
    def judged(self) -> str:
        """Engine, version and platform whose rules were applied, such as `SGLang 0.5.23 on cuda-sm90`."""
        if not self.engine:
            return ""
        if not self.judgement.approximate:
            return f"{self.engine} on {self.platform}"
        engine, _, rules = self.engine.rpartition(" ")
        return f"{engine} {self.judgement.asked} on {self.platform}, approximately: by the rules of {rules}"

    def place(self, side: Side) -> Position | None:
        """Where one side of a finding stands."""
        if self.document is None or not side.field.startswith(("spec", "metadata", "apiVersion", "kind")):
            return None
        return self.document.locate(side.field)

    def main_place(self, finding: Finding) -> Position | None:
        """Where a finding is best shown: at the first side that is written, else where it would be."""
        places = [place for side in finding.sides if (place := self.place(side)) is not None]
        return next((place for place in places if place.exact), places[0] if places else None)


@dataclass
class Tally:
    """The totals of a run.

    Attributes:
        accepted: Objects that may be applied.
        refused: Objects that may not.
        errors: Of the refused ones.
        refused_warnings: Of the refused ones.
        accepted_warnings: Of the accepted ones.
        skipped: Objects of other kinds.
        unreadable: What could not be used.
    """

    accepted: int = 0
    refused: int = 0
    errors: int = 0
    refused_warnings: int = 0
    accepted_warnings: int = 0
    skipped: int = 0
    unreadable: int = 0

    def add(self, result: Verdict | Unreadable) -> None:
        """Count one result."""
        if not isinstance(result, Verdict):
            self.unreadable += 1
        elif result.accepted:
            self.accepted += 1
            self.accepted_warnings += result.warnings
        else:
            self.refused += 1
            self.errors += result.errors
            self.refused_warnings += result.warnings

    @property
    def status(self) -> int:
        """Exit status: 0 all accepted, 1 some refused, 2 some unusable."""
        return 2 if self.unreadable else 1 if self.refused else 0

    @override
    def __str__(self) -> str:
        parts = []
        if self.refused:
            inside = [count(self.errors, "error")] if self.errors else []
            inside += [count(self.refused_warnings, "warning")] if self.refused_warnings else []
            parts.append(f"{self.refused} refused ({', '.join(inside)})")
        if self.accepted:
            warned = f" ({count(self.accepted_warnings, 'warning')})" if self.accepted_warnings else ""
            parts.append(f"{self.accepted} accepted{warned}")
        number = self.refused + self.accepted
        text = f"{count(number, 'document')}: {', '.join(parts)}" if parts else "no DeepSeekV41Deployment found"
        text += f"; {self.skipped} of other kinds skipped" if self.skipped else ""
        return text + (f"; {count(self.unreadable, 'file')} could not be used" if self.unreadable else "")


def count(number: int, noun: str) -> str:
    """A number with its noun, such as `2 errors`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"

"""What one judgement has in common: the engine, its version, the platform, and what the user takes upon themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epd_operator.rules.advisory import Advisory
    from epd_operator.rules.flag import Catalogue
    from epd_operator.rules.ruleset import Ruleset


@dataclass(frozen=True)
class JudgementContext:
    """What is the same for all rules of one judgement.

    Attributes:
        bare: A bare command line is judged, on which nothing can be acknowledged.
        plugins: What the engine of a bare command line loads; a spec says it itself.
        lenient: Unknown flags are warned of, not refused.
        acknowledged: Rule ids that the user takes responsibility for, in the order in which they are written.
        advisories: What is known of single builds.
        refused: Fields that the schema refuses; what rests on them is not judged.
    """

    ruleset: Ruleset
    version: str
    platform: str
    bare: bool = False
    plugins: tuple[str, ...] = ()
    lenient: bool = False
    acknowledged: tuple[str, ...] = ()
    advisories: tuple[Advisory, ...] = ()
    refused: frozenset[str] = frozenset()

    def catalogue(self, role: str) -> Catalogue:
        """The flags of a role."""
        return self.ruleset.catalogue(self.version, role)

    @property
    def flags_source(self) -> str:
        """Where the flags can be read up."""
        return f"{self.ruleset.engine_type} {self.version}, its argument parser"

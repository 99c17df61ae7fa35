"""Several measurements of one thing."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Spread:
    """Their middle and their ends."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def to_json(self) -> dict[str, float]:
        """The same, rounded."""
        return {name: round(value, 4) for name, value in vars(self).items()}

"""Everything that was measured, as it goes into tables, plots and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.host import host

if TYPE_CHECKING:
    from bench.swapool.latency import Point as Latency
    from bench.swapool.replay import Cell
    from bench.swapool.turn import Point as Turn


@dataclass(frozen=True)
class Results:
    """The parts that were asked for; the others are empty.

    Attributes:
        latency: Of moving windows.
        turns: Times to first token.
        hits: Shares of returning turns.
    """

    latency: tuple[Latency, ...] = ()
    turns: tuple[Turn, ...] = ()
    hits: tuple[Cell, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Every figure, and where it was taken."""
        parts = {name: [each.to_json() for each in part] for name, part in vars(self).items()}
        return {"machine": host(), **parts}

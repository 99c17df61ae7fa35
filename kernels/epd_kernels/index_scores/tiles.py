"""Tiles of the index scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from epd_kernels.architecture import Architecture


@dataclass(frozen=True)
class Tile:
    """What one program takes.

    Attributes:
        queries: Pairs of row and head that share decoded keys; a row is taken whole. A power of two.
        columns: Entries scored at once; a power of two.
        turns: Times that a program does so.
        warps: Warps of a program.
        stages: Depth of the pipeline of loads.
    """

    queries: int
    columns: int
    turns: int
    warps: int
    stages: int

    def rows(self, heads: int) -> int:
        """Rows of a program, where each has `heads` (a power of two) query heads."""
        return max(1, self.queries // heads)


SHARED: Final = {
    Architecture.SM90: Tile(queries=128, columns=128, turns=8, warps=8, stages=2),
    Architecture.SM100: Tile(queries=128, columns=128, turns=8, warps=8, stages=2),
    Architecture.GFX942: Tile(queries=64, columns=64, turns=8, warps=4, stages=2),
    Architecture.GFX950: Tile(queries=128, columns=64, turns=8, warps=4, stages=2),
    Architecture.INTERPRETER: Tile(queries=256, columns=256, turns=4, warps=1, stages=1),
}
"""All entries: rows of a request share their keys."""

OWN: Final = {
    Architecture.SM90: Tile(queries=1, columns=128, turns=8, warps=4, stages=2),
    Architecture.SM100: Tile(queries=1, columns=128, turns=8, warps=4, stages=2),
    Architecture.GFX942: Tile(queries=1, columns=64, turns=8, warps=4, stages=2),
    Architecture.GFX950: Tile(queries=1, columns=64, turns=8, warps=4, stages=2),
    Architecture.INTERPRETER: Tile(queries=1, columns=512, turns=2, warps=1, stages=1),
}
"""Candidates: each row gathers its own keys."""

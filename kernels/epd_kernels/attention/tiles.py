"""Tiles of windowed attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from epd_kernels.architecture import Architecture


@dataclass(frozen=True)
class Tile:
    """What one program takes.

    Attributes:
        heads: Query heads of one row; a power of two, at least 16 for matrix instructions.
        keys: Keys at a time; a power of two, at least 16.
        warps: Of a program.
        stages: Key tiles in flight.
        splits: (most rows, splits of the keys), by rising rows; more rows are not split.
    """

    heads: int
    keys: int
    warps: int
    stages: int
    splits: tuple[tuple[int, int], ...]

    def split(self, rows: int) -> int:
        """In how many parts, each a program's, the keys of each of so many rows are taken."""
        return next((splits for most, splits in self.splits if rows <= most), 1)


# Splitting writes and reads float32 partial outputs: worth it only while there are fewer programs than multiprocessors.
_SPLITS: Final = ((8, 10), (16, 5), (32, 4), (64, 2))

TILES: Final = {
    Architecture.SM90: Tile(heads=64, keys=32, warps=8, stages=2, splits=_SPLITS),
    Architecture.SM100: Tile(heads=64, keys=64, warps=8, stages=2, splits=_SPLITS),
    Architecture.GFX942: Tile(heads=64, keys=16, warps=4, stages=1, splits=_SPLITS),
    Architecture.GFX950: Tile(heads=64, keys=32, warps=4, stages=1, splits=_SPLITS),
    Architecture.INTERPRETER: Tile(heads=64, keys=64, warps=1, stages=1, splits=((2, 3),)),
}
MOST_SPLITS: Final = 16
"""What the merging kernel is compiled for; a power of two."""
MERGE_WARPS: Final = 4

"""Tiles of the choice of entries and of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from epd_kernels.architecture import Architecture


@dataclass(frozen=True)
class Tile:
    """What one program takes at once.

    Attributes:
        rows: A power of two.
        columns: Of each row; a power of two up to 2^14.
        warps: Warps of a program.
    """

    rows: int
    columns: int
    warps: int


TILES: Final = {
    Architecture.SM90: Tile(rows=1, columns=4096, warps=8),
    Architecture.SM100: Tile(rows=1, columns=4096, warps=8),
    Architecture.GFX942: Tile(rows=1, columns=4096, warps=8),
    Architecture.GFX950: Tile(rows=1, columns=4096, warps=8),
    Architecture.INTERPRETER: Tile(rows=64, columns=1024, warps=1),
}

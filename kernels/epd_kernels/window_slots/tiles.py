"""Tiles of the page-table walk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from epd_kernels.architecture import Architecture


@dataclass(frozen=True)
class Tile:
    """What one program takes.

    Attributes:
        slots: Slots that it finds, of several short rows or a part of a long one; a power of two.
        columns: At most so many of one row; a power of two.
        warps: Warps of a program.
    """

    slots: int
    columns: int
    warps: int

    def shape(self, width: int) -> tuple[int, int]:
        """Rows and columns of a program where rows are `width` slots long."""
        columns = min(self.columns, 1 << max(0, width - 1).bit_length())
        return self.slots // columns, columns


TILES: Final = {
    Architecture.SM90: Tile(slots=1024, columns=512, warps=4),
    Architecture.SM100: Tile(slots=1024, columns=512, warps=4),
    Architecture.GFX942: Tile(slots=1024, columns=512, warps=4),
    Architecture.GFX950: Tile(slots=1024, columns=512, warps=4),
    Architecture.INTERPRETER: Tile(slots=8192, columns=1024, warps=1),
}

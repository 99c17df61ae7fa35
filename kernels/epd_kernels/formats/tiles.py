"""Tiles of packing and unpacking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from epd_kernels.architecture import Architecture


@dataclass(frozen=True)
class Tile:
    """What one program takes.

    Attributes:
        values: Values of its rows, padding included; a power of two. At least 32 * 32 * warps (32 * 64 on AMD), or a
            lane has too few codes of half a byte for an access of 16 bytes.
        warps: Warps of a program.
    """

    values: int
    warps: int

    def shape(self, dim: int) -> tuple[int, int]:
        """Rows and columns of a program where rows are `dim` values long."""
        columns = 1 << (dim - 1).bit_length()
        return max(1, self.values // columns), columns


TILES: Final = {
    Architecture.SM90: Tile(values=4096, warps=4),
    Architecture.SM100: Tile(values=4096, warps=4),
    Architecture.GFX942: Tile(values=8192, warps=4),
    Architecture.GFX950: Tile(values=8192, warps=4),
    Architecture.INTERPRETER: Tile(values=65536, warps=1),
}

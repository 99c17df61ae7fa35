"""Tiles of the row gather."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from epd_kernels.architecture import Architecture


@dataclass(frozen=True)
class Tile:
    """What one program takes.

    Attributes:
        words: Words that it copies, of several short rows or a part of a long one; a power of two. At least
            4 * 32 * warps (64 on AMD) four-byte words, or a lane has too few for an access of 16 bytes.
        warps: Warps of a program.
    """

    words: int
    warps: int

    def shape(self, width: int) -> tuple[int, int]:
        """Rows and words of a program where rows are `width` words long."""
        columns = min(self.words, 1 << max(0, width - 1).bit_length())
        return self.words // columns, columns


TILES: Final = {
    Architecture.SM90: Tile(words=1024, warps=4),
    Architecture.SM100: Tile(words=1024, warps=4),
    Architecture.GFX942: Tile(words=1024, warps=4),
    Architecture.GFX950: Tile(words=1024, warps=4),
    Architecture.INTERPRETER: Tile(words=16384, warps=1),
}

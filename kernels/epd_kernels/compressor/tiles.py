"""Tiles of pooling pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from epd_kernels.architecture import Architecture


@dataclass(frozen=True)
class Tile:
    """What one program takes.

    Attributes:
        values: Values of its latents, padding included; a power of two. At least 4 * 32 * warps (4 * 64 on AMD), or a
            lane has too few for an access of 16 bytes.
        requests: Requests looked at in one go when searching for an entry's; a power of two.
        warps: Warps of a program.
    """

    values: int
    requests: int
    warps: int

    def shape(self, dim: int) -> tuple[int, int]:
        """Entries and columns of a program where latents are `dim` values long."""
        columns = 1 << (dim - 1).bit_length()
        return max(1, self.values // columns), columns


TILES: Final = {
    Architecture.SM90: Tile(values=2048, requests=64, warps=4),
    Architecture.SM100: Tile(values=2048, requests=64, warps=4),
    Architecture.GFX942: Tile(values=2048, requests=64, warps=4),
    Architecture.GFX950: Tile(values=2048, requests=64, warps=4),
    Architecture.INTERPRETER: Tile(values=4096, requests=8, warps=1),
}

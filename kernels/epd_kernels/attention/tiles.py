"""Tiles of windowed attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from epd_kernels.architecture import Architecture


@dataclass(frozen=True)
class Tile:
    """What one program takes.

    Attributes:
        heads: Query heads of one row; a power of two, at least 16 for matrix instructions. All heads of a row share its
            latents, so that fewer read and decode them again.
        keys: Keys at a time; a power of two, at least 16.
        warps: Of a program.
        stages: Key tiles in flight.
        window_stages: Of the window where entries follow.
        splits: (most rows, splits of the keys), by rising rows; more rows are not split.
    """

    heads: int
    keys: int
    warps: int
    stages: int
    window_stages: int
    splits: tuple[tuple[int, int], ...]

    def split(self, rows: int) -> int:
        """In how many parts, each a program's, the keys of each of so many rows are taken."""
        return next((splits for most, splits in self.splits if rows <= most), 1)


# Splitting writes and reads float32 partial outputs: worth it only while there are fewer programs than multiprocessors.
_SPLITS: Final = ((8, 10), (16, 5), (32, 4), (64, 2))

# Compiled by Triton 3.7.1 at the released sizes, with and without entries, whole and split, on AMD with pools below and
# beyond 2 GiB. The 64 x 512 sums take 128 registers of each thread in 8 warps, 128 of each lane in 4. No time was
# measured.
TILES: Final = {
    # 255 registers, no spills, 105 to 128 KiB, wgmma. 64 keys: 416 bytes of stack. Two window stages beside entries: 8.
    Architecture.SM90: Tile(heads=64, keys=32, warps=8, stages=2, window_stages=1, splits=_SPLITS),
    # 210 to 232 registers, no spills, 147 to 162 KiB, tcgen05. 32 keys: 244 registers, 113 KiB.
    Architecture.SM100: Tile(heads=64, keys=64, warps=8, stages=2, window_stages=1, splits=_SPLITS),
    # 318 to 438 registers, no vector register spilled, 64 KiB. 32 keys: 534; 32 keys and 16 heads: 104.
    Architecture.GFX942: Tile(heads=64, keys=16, warps=4, stages=1, window_stages=1, splits=_SPLITS),
    # 331 to 346 registers, no spills, 64 KiB. One window stage beside entries: 1 spill; 32 keys: 42; 8 warps: 170.
    Architecture.GFX950: Tile(heads=64, keys=16, warps=4, stages=2, window_stages=2, splits=_SPLITS),
    Architecture.INTERPRETER: Tile(heads=64, keys=64, warps=1, stages=1, window_stages=1, splits=((2, 3),)),
}
MOST_SPLITS: Final = 16
"""What the merging kernel is compiled for; a power of two."""
MERGE_WARPS: Final = 4
"""79 registers on sm_90, 80 on sm_100, 49 on AMD, no spills."""

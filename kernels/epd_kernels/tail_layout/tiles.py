"""Tiles of the tail layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from epd_kernels.architecture import Architecture


@dataclass(frozen=True)
class Tile:
    """What one program takes.

    Attributes:
        rows: Places that it fills.
        requests: Requests that it compares them with at once.
        warps: Warps of a program.
    """

    rows: int
    requests: int
    warps: int


TILES: Final = {
    Architecture.SM90: Tile(rows=128, requests=32, warps=4),
    Architecture.SM100: Tile(rows=128, requests=32, warps=4),
    Architecture.GFX942: Tile(rows=128, requests=32, warps=4),
    Architecture.GFX950: Tile(rows=128, requests=32, warps=4),
    Architecture.INTERPRETER: Tile(rows=128, requests=16, warps=1),
}

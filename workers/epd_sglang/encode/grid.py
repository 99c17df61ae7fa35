"""What an encoder says of each picture besides its rows: our wire format between encoder and language side.

The engine carries one row of integers a picture (it calls it `image_grid_thw`). Ours is height and width in patches,
the picture's identity, and the weights that made its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA: Final = 1
"""Of the row; another one is another digest of weights, so that sides of two schemas refuse each other."""
_BITS: Final = 64


class Grid(NamedTuple):
    """One picture.

    Attributes:
        high: In patches.
        wide: In patches.
        identity: Hash of its pixels, the one that a server with its own tower would use, 0 to 2^64 - 1. The language
            side's cache keys follow from it, whichever hardware encoded the picture.
        weights: Digest of the encoder's weights, 0 to 2^63 - 1.
    """

    high: int
    wide: int
    identity: int
    weights: int

    def row(self) -> list[int]:
        """As signed 64-bit integers."""
        signed = self.identity - (1 << _BITS) if self.identity >> (_BITS - 1) else self.identity
        return [self.high, self.wide, signed, self.weights]

    @classmethod
    def read(cls, row: Sequence[int]) -> Self:
        """The inverse of `row`.

        Raises:
            ValueError: Not four integers: the encoder runs another version of the plugin.
        """
        if len(row) != len(cls._fields):
            raise ValueError(
                f"an encoder describes a picture by {len(row)} numbers, not {len(cls._fields)}: encoders and prefills "
                "must run the same version of the plugin epd"
            )
        high, wide, identity, weights = (int(value) for value in row)
        return cls(high, wide, identity % (1 << _BITS), weights)

    def tokens(self, ratio: int) -> int:
        """Length of the span: start, then for every line its cells and a newline, then end.

        Args:
            ratio: Patches a side of a cell. Source: SGLang 0.5.23, srt/multimodal/deepseek_v41_image_processing.py.
        """
        return -(-self.high // ratio) * (-(-self.wide // ratio) + 1) + 2

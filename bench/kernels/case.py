"""Batches as serving makes them, and what follows from their lengths."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Final

from epd_kernels.tail_layout.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_kernels.sizes import Sizes


@dataclass(frozen=True)
class Case:
    """One step of one layer.

    Attributes:
        name: What it is.
        extends: Rows of each request in this step.
        lengths: Tokens of each request behind this step.
        whole: Whether the layer runs all rows; if not, the last ones.
        ratio: Tokens in a global entry.
        policy: How far back the last rows may look.
    """

    name: str
    extends: tuple[int, ...]
    lengths: tuple[int, ...]
    whole: bool = False
    ratio: int = 1
    policy: Policy = Policy.WINDOW

    def tails(self, window: int) -> tuple[int, ...]:
        """Rows of each request that run."""
        return self.extends if self.whole else tuple(min(window, extend) for extend in self.extends)

    def rows(self, window: int) -> int:
        """R: all of these."""
        return sum(self.tails(window))

    def floors(self, window: int) -> tuple[int, ...]:
        """First position that each request's rows may look at."""

        def floor(length: int, tail: int) -> int:
            if self.whole:
                return 0
            return max(0, length - window) if self.policy is Policy.WINDOW else length - tail

        return tuple(starmap(floor, zip(self.lengths, self.tails(window), strict=True)))

    def starts(self, window: int) -> tuple[int, ...]:
        """First window row that each request's rows look at; all behind it are looked at, too."""
        together = zip(self.floors(window), self.lengths, self.tails(window), strict=True)
        return tuple(max(floor, length - tail - window + 1) if tail else length for floor, length, tail in together)

    def window_pairs(self, window: int) -> int:
        """Window keys of all rows together."""
        together = zip(self.floors(window), self.lengths, self.tails(window), strict=True)
        return sum(
            position - max(floor, position - window + 1) + 1
            for floor, length, tail in together
            for position in range(length - tail, length)
        )

    def window_rows(self, window: int) -> int:
        """Different window rows that are looked at."""
        return sum(length - start for length, start in zip(self.lengths, self.starts(window), strict=True))

    def window_pages(self, window: int, page_size: int) -> int:
        """Pages that hold them."""
        together = zip(self.lengths, self.starts(window), strict=True)
        return sum((length - 1) // page_size - start // page_size + 1 for length, start in together if length > start)

    def entries(self) -> tuple[int, ...]:
        """Global entries of each request."""
        return tuple(length // self.ratio for length in self.lengths)

    def new_entries(self) -> int:
        """Entries that this step completes."""
        before = sum((length - extend) // self.ratio for length, extend in zip(self.lengths, self.extends, strict=True))
        return sum(self.entries()) - before

    def entry_pages(self, page_size: int) -> int:
        """Pages that hold all entries; a page is `page_size` tokens."""
        return sum(-(-count // (page_size // self.ratio)) for count in self.entries())

    def seen(self, window: int, keep: Callable[[int], int] = int) -> int:
        """Sum over all rows of `keep` of the entries that a row sees."""
        return sum(
            keep((position + 1) // self.ratio)
            for length, tail in zip(self.lengths, self.tails(window), strict=True)
            for position in range(length - tail, length)
        )


def kept(seen: int, sizes: Sizes) -> int:
    """Entries in the candidate blocks of a row that sees `seen`: its newest block is always one, and may be partial."""
    blocks = -(-seen // sizes.block)
    if blocks <= sizes.blocks:
        return seen
    return (sizes.blocks - 1) * sizes.block + seen - (blocks - 1) * sizes.block


CASES: Final = (
    Case("8 x 8,192 tokens, last rows", extends=(8192,) * 8, lengths=(8192,) * 8),
    Case("1 x 8,192 tokens, last rows", extends=(8192,), lengths=(8192,)),
    Case("1 x 8,192 tokens, all rows", extends=(8192,), lengths=(8192,), whole=True, ratio=2),
    Case("1 x 8,192 tokens behind 24,576, last rows", extends=(8192,), lengths=(32768,)),
    Case("64 x 1 token behind 8,191, decode", extends=(1,) * 64, lengths=(8192,) * 64, whole=True),
)
"""The decoder half (one token an entry), the encoder half (two), a chunk of a long prompt, and decoding."""

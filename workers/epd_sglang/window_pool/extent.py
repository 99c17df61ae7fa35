"""Which rows of a step are the window that a longer prompt will come back for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WINDOW: Final = 128
"""Rows of a window. Source: SGLang 0.5.23, srt/model_executor/encoder_swa_replay.py:48."""


@dataclass(frozen=True)
class Extent:
    """One request's part of a step.

    Attributes:
        prefix: Tokens whose entries were there before.
        rows: Rows that the step was scheduled for.
        replayed: Rows of the prefix that run again, in front of these.
        prompt: Tokens that the request will have run when its last chunk is done.
    """

    prefix: int
    rows: int
    replayed: int
    prompt: int

    def boundary(self, page_size: int) -> int | None:
        """The last page boundary of the prompt, if the whole window before it is among this step's rows.

        A longer prompt hits there: prefixes are kept in whole pages.
        """
        end = self.prompt // page_size * page_size
        inside = self.prefix <= end - WINDOW and end <= self.prefix + self.rows
        return end if end >= WINDOW and inside else None


def windows(extents: Iterable[Extent], page_size: int) -> Iterator[tuple[int, int, int]]:
    """The windows that a step completes.

    Args:
        extents: Of all requests, in the order of their rows.
        page_size: Tokens of a page.

    Yields:
        Number of the request, position behind the window, and where its first row is among all rows of the step.
    """
    offset = 0
    for number, extent in enumerate(extents):
        end = extent.boundary(page_size)
        if end is not None:
            yield number, end, offset + extent.replayed + end - WINDOW - extent.prefix
        offset += extent.replayed + extent.rows

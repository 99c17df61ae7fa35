"""Rows by index, in torch. Nothing is ever scattered back: only the kept rows go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def gather_rows(sources: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
    """Take the same rows of every source, bit for bit.

    Args:
        sources: [S, ...] each, any dtype and trailing shape.
        rows: [R] int64, indices below S; -1 gives a row of zeros.

    Returns:
        [R, ...] for each source, not to be written: rows that follow one another come back as a view.
    """
    first = int(rows[0]) if len(rows) else 0
    if first >= 0 and torch.equal(rows, torch.arange(first, first + len(rows), device=rows.device)):
        return [source.narrow(0, first, len(rows)) for source in sources]
    absent = rows < 0
    if not bool(absent.any()):
        return [source.index_select(0, rows) for source in sources]
    kept = rows.clamp(min=0)
    return [_masked(source, kept, absent) for source in sources]


def _masked(source: Tensor, kept: Tensor, absent: Tensor) -> Tensor:
    if not len(source):
        return source.new_zeros(len(kept), *source.shape[1:])
    result = source.index_select(0, kept)
    result[..., None].view(torch.uint8)[absent] = 0  # as bytes: torch cannot fill every type
    return result

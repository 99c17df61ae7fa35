"""The best entries of each row, in torch.

Source: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

NEVER: Final = float("-inf")


def top_entries(values: Tensor, *, count: int, candidates: Tensor | None = None, block: int) -> Tensor:
    """The `count` largest values of each row; of equal ones at the edge, the first.

    Args:
        values: [R, N]; -inf is never chosen.
        count: Entries wanted.
        candidates: i32 [R, N / block]: column j is entry candidates[row, j // block] * block + j % block, not entry j.
        block: Entries in a candidate block.

    Returns:
        i32 [R, count], entry numbers, rising (as the candidates do), -1 behind the last.
    """
    rows, n = values.shape
    kept = min(count, n)
    columns = _columns(values, kept)
    chosen = values.new_full((rows, count), -1, dtype=torch.int32)
    if candidates is None or not kept:
        chosen[:, :kept] = columns.masked_fill_(columns == n, -1)
        return chosen
    inside = columns.clamp(max=n - 1)
    entries = candidates.long().gather(1, inside // block) * block + inside % block
    chosen[:, :kept] = entries.masked_fill_(columns == n, -1)
    return chosen


def _columns(values: Tensor, count: int) -> Tensor:
    """Columns [R, count] of the largest values [R, n], rising, n for none; count <= n."""
    n = values.shape[1]
    if count == n:
        order = torch.arange(n, device=values.device).expand_as(values)
        return order.masked_fill(values == NEVER, n).sort(-1).values
    best = values.topk(count + 1, -1)
    columns = best.indices[:, :count].masked_fill(best.values[:, :count] == NEVER, n).sort(-1).values
    # The next value equals the last: which of them `topk` gave is unspecified.
    edge = best.values[:, count - 1] if count else best.values[:, 0]
    open_rows = ((best.values[:, count] == edge) & (edge > NEVER)).nonzero().squeeze(1)
    if count and len(open_rows):
        columns[open_rows] = _first(values[open_rows], edge[open_rows, None], count)
    return columns


def _first(values: Tensor, edge: Tensor, count: int) -> Tensor:
    """Columns [r, count] of all values above `edge` [r, 1] and of the first that equal it."""
    above, level = values > edge, values == edge
    wanted = count - above.sum(-1, keepdim=True)
    kept = above | (level & (level.cumsum(-1) <= wanted))
    return kept.nonzero()[:, 1].view(len(values), count)

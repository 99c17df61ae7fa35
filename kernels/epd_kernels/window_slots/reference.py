"""The page-table walk, in torch.

Source of the rule: SGLang 0.5.23, kernels/ops/attention/dsv4/attn_metadata_kernels.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Slots:
    """The window slots of each row.

    Attributes:
        slots: [R, window] int32, packed from the left in rising positions; -1 behind the count and where no page is.
        counts: [R] int32, positions in the row's window, absent ones included.
    """

    slots: Tensor
    counts: Tensor


def window_slots(
    positions: Tensor, floors: Tensor, requests: Tensor, table: Tensor, *, page_size: int, window: int
) -> Slots:
    """Find the slots of every row's window.

    Column j of row r is position max(floors[r], positions[r] - window + 1) + j; position p of a sequence has the slot
    table[request, p // page_size] * page_size + p % page_size.

    Args:
        positions: [R] int32.
        floors: [R] int32, first positions that may be read, at most `positions`.
        requests: [R] int32, rows of the table; -1 for padding rows, whose count is 0.
        table: [B, P] int32, pages of each request in order, any stride from row to row; -1 where there is none.
        page_size: Tokens in a page.
        window: Rows of the sliding window.
    """
    first = torch.maximum(floors, positions - (window - 1))
    counts = (positions - first + 1).clamp_(min=0).masked_fill_(requests < 0, 0)
    columns = torch.arange(window, device=positions.device, dtype=torch.int32)
    wanted = (first[:, None] + columns).masked_fill_(columns >= counts[:, None], -1)
    return Slots(_walk(wanted, requests, table, page_size), counts)


def entry_slots(entries: Tensor, requests: Tensor, table: Tensor, *, page_size: int) -> Tensor:
    """Find the slots [R, K] int32 of global entries; -1 where an entry, its request or its page is missing.

    Args:
        entries: [R, K] int32, numbers counted from the sequence's start; -1 for none.
        requests: [R] int32, rows of the table; -1 for padding rows.
        table: [B, P] int32, as for `window_slots`.
        page_size: Entries in a page: tokens in a page divided by the owner's ratio.
    """
    return _walk(entries.masked_fill((requests < 0)[:, None], -1), requests, table, page_size)


def _walk(wanted: Tensor, requests: Tensor, table: Tensor, page_size: int) -> Tensor:
    """Slots of places [R, N] in the requests' pages; -1 for place -1, and where no page is."""
    if not len(table):
        return torch.full_like(wanted, -1)
    # Columns of -1 around the table answer for places before and behind it, without masks as large as the result.
    framed = functional.pad(table, (1, 1), value=-1)
    index = wanted.div(page_size, rounding_mode="floor")
    start = requests.clamp(min=0) * framed.shape[1] + 1
    line = index.clamp(max=table.shape[1]).add_(start[:, None])
    page = framed.flatten().index_select(0, line.flatten()).view_as(wanted)
    # Page -1 makes every offset negative.
    return page.sub_(index).mul_(page_size).add_(wanted).clamp_(min=-1)

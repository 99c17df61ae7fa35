"""The layout of a step's tails, in torch.

Source of the rule: SGLang 0.5.23, kernels/ops/attention/dsv4/attn_metadata_kernels.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from epd_kernels.tail_layout.policy import Policy

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The rows of a step that run the decoder half, request after request.

    A row's window is the positions [max(floor, position - window + 1), position].

    Attributes:
        rows: [R] int64, indices into the step's rows; -1 for padding.
        positions: [R] int32, positions in the request's sequence; -1 for padding.
        floors: [R] int32, first positions that the rows may read; 0 for padding.
        requests: [R] int32, numbers of the requests; -1 for padding.
        starts: [B + 1] int32, request b owns the places starts[b] to starts[b + 1].
    """

    rows: Tensor
    positions: Tensor
    floors: Tensor
    requests: Tensor
    starts: Tensor


def tail_layout(
    extends: Tensor, lengths: Tensor, bases: Tensor, whole: Tensor, *, window: int, policy: Policy, capacity: int
) -> Layout:
    """Lay out the last rows of every request.

    A request with E rows in this step and S tokens behind it runs its last T rows: T = E if it is whole, else
    min(window, E). Its floor is its base if it is whole, else max(base, `policy`).

    Args:
        extends: [B] int32, rows E of each request; 0 is allowed.
        lengths: [B] int32, tokens S of each sequence behind the step.
        bases: [B] int32, first positions that may be read at all: 0, or where a replay starts.
        whole: [B] bool, requests that run every row (prompt log-probabilities, decode).
        window: Rows of the sliding window.
        policy: The floor's rule.
        capacity: Places R in the result, at least sum(T); those behind sum(T) are padding.
    """
    tails = torch.where(whole, extends, extends.clamp(max=window))
    starts = functional.pad(tails.cumsum(0, dtype=torch.int32), (1, 0))
    reach = (lengths - window).clamp_(min=0) if policy is Policy.WINDOW else lengths - tails
    floors = torch.where(whole, bases, torch.maximum(bases, reach))
    ends = starts[1:]
    # A place plus the first two is its row and its position; one more column answers for the padding.
    shifts = torch.stack((extends.cumsum(0) - ends, (lengths - ends).long(), floors.long()))
    places = torch.arange(capacity, device=extends.device, dtype=torch.int32)
    requests = torch.searchsorted(ends, places, right=True, out_int32=True)
    row, position, floor = functional.pad(shifts, (0, 1))[:, requests]
    padding = places >= starts[-1]
    return Layout(
        rows=(row + places).masked_fill_(padding, -1),
        positions=(position + places).int().masked_fill_(padding, -1),
        floors=floor.int().masked_fill_(padding, 0),
        requests=requests.masked_fill_(padding, -1),
        starts=starts,
    )

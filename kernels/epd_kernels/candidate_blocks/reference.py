"""Candidate blocks in torch.

Source: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from epd_kernels.top_entries.reference import NEVER, top_entries

if TYPE_CHECKING:
    from torch import Tensor


def candidate_blocks(maxima: Tensor, visible: Tensor, *, block: int, count: int) -> Tensor:
    """The `count` best blocks of each row; the block of the newest visible entry is always among them.

    Args:
        maxima: [R, n], the largest score of each block; -inf is never chosen, not even for the newest.
        visible: i32 [R], entries that the row sees.
        block: Entries in a block.
        count: Blocks kept, at least 1.

    Returns:
        i32 [R, count], block numbers, rising, -1 behind the last; of equal ones at the edge, the first are kept.
    """
    newest = (visible - 1).div(block, rounding_mode="floor")
    forced = (torch.arange(maxima.shape[1], device=maxima.device) == newest[:, None]) & (maxima > NEVER)
    return top_entries(maxima.masked_fill(forced, float("inf")), count=count, block=1)

"""Which global entries each row attends to, in torch.

Layers between two index sources reuse a selection; the candidate source publishes blocks, and later sources score again
inside those alone.

Source: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from epd_kernels.candidate_blocks.reference import candidate_blocks
from epd_kernels.index_scores.reference import block_maxima, parts
from epd_kernels.top_entries.reference import top_entries

if TYPE_CHECKING:
    from torch import Tensor

    from epd_kernels.paged import Paged


@dataclass(frozen=True)
class Selection:
    """What `select_entries` gives.

    Attributes:
        entries: i32 [R, count], entry numbers of the row's request, rising, -1 behind the last.
        candidates: i32 [R, blocks], block numbers, rising, -1 behind the last; None if none were asked for.
    """

    entries: Tensor
    candidates: Tensor | None


def select_entries(  # noqa: PLR0917 -- tensors come in the order of every engine's call
    query: Tensor,
    weights: Tensor,
    keys: Paged,
    table: Tensor,
    requests: Tensor,
    visible: Tensor,
    *,
    count: int,
    block: int,
    blocks: int | None,
    candidates: Tensor | None,
) -> Selection:
    """Score all visible entries, or those of the candidate blocks, and keep the best.

    Of equal scores at the edge the first are kept. Rows of a request should stand together: its keys are decoded once
    for each run of them.

    Args:
        query: uint8 [R, heads, width], rows in the keys' format.
        weights: [R, heads], the dtype of the scores.
        keys: The pool of index keys.
        table: i32 [B, P], pages of each request, -1 where it has none.
        requests: i32 [R], -1 for padding.
        visible: i32 [R], entries that the row sees.
        count: Entries kept.
        block: Entries in a candidate block.
        blocks: How many candidate blocks to publish, or None.
        candidates: i32 [R, C], the only blocks to look into, rising, -1 behind the last; or None for all.

    Raises:
        ValueError: Both `blocks` and `candidates` are given.
    """
    if blocks is not None and candidates is not None:
        raise ValueError("a row that is bound to candidate blocks cannot publish any: give blocks or candidates")
    entries = requests.new_full((len(query), count), -1, dtype=torch.int32)
    published = None if blocks is None else requests.new_full((len(query), blocks), -1, dtype=torch.int32)
    for part in parts(query, weights, keys, table, requests, visible, block=block, candidates=candidates):
        held = None if part.blocks is None else part.blocks.expand(len(part.values), -1)
        entries[part.rows] = top_entries(part.values, count=count, candidates=held, block=block)
        if published is not None and blocks is not None:
            maxima = block_maxima(part.values, block)
            published[part.rows] = candidate_blocks(maxima, visible[part.rows], block=block, count=blocks)
    return Selection(entries, published)

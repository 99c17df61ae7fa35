"""Sparse attention over paged latents and scores of index keys.

Sources: SGLang 0.5.23, kernels/ops/attention/flash_mla_interface.py and kernels/ops/attention/dsv4/fp4_indexer.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from epd_kernels.attention.reference import attend
from epd_kernels.formats.reference import unpack
from epd_kernels.window_slots.reference import Slots
from epd_sglang.cpu.leaves import rows

if TYPE_CHECKING:
    from torch import Tensor

NEVER_SPLIT = 1 << 30
"""Keys from which FlashMLA divides a row among several blocks: there is nothing to divide here."""


def flash_mla_with_kvcache(  # the engine's names: it passes most by keyword
    q: Tensor,
    k_cache: Tensor,
    *,
    softmax_scale: float,
    indices: Tensor,
    topk_length: Tensor,
    attn_sink: Tensor,
    extra_k_cache: Tensor | None = None,
    extra_indices_in_kvcache: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attend to window rows and selected entries, with one softmax over both and a sink a head.

    Args:
        q: [n, 1, heads, 512].
        k_cache: [pages, rows, 1, bytes of a row].
        softmax_scale: Of the logits.
        indices: Slots of window rows [n, 1, k].
        topk_length: How many of them count [n].
        attn_sink: [heads or more].
        extra_k_cache: As `k_cache`, of entries; none without.
        extra_indices_in_kvcache: As `indices`.
        extra_topk_length: As `topk_length`.

    Returns:
        [n, 1, heads, 512] of the query's type, and no sum of exponentials: nothing reads it.
    """
    window = _counted(indices, topk_length)
    seen = Slots(window, (window >= 0).sum(1).int())
    entries = selected = None
    if extra_k_cache is not None:
        assert extra_indices_in_kvcache is not None
        assert extra_topk_length is not None
        entries, selected = rows.read_view(extra_k_cache), _counted(extra_indices_in_kvcache, extra_topk_length)
    sink = attn_sink[: q.shape[2]].float()
    got = attend(q.squeeze(1), rows.read_view(k_cache), seen, entries, selected, sink, scale=softmax_scale)
    return got.output.unsqueeze(1), None


def _counted(indices: Tensor, lengths: Tensor) -> Tensor:
    """Slots [n, k] with -1 behind each row's length."""
    slots = indices.squeeze(1)
    return slots.masked_fill(torch.arange(slots.shape[1]) >= lengths.reshape(-1, 1), -1)


def fp4_index_logits_decode(
    q: Tensor, weights: Tensor, slots: Tensor, lens: Tensor, table: Tensor, page_size: int
) -> Tensor:
    """Scores of index keys for decode steps.

    Args:
        q: bfloat16 [n, heads, 128].
        weights: Of the heads [n, heads].
        slots: [n, l] int64.
        lens: How many of them count [n].
        table: uint8 [pages, bytes of a page].
        page_size: Rows in a page.

    Returns:
        float32 [n, l]; minus infinity behind each row's length. Products are rounded to bfloat16 as the engine's are.
    """
    keys = unpack(rows.index_keys(table, page_size), slots.flatten(), torch.float32).to(q.dtype)
    scores = torch.einsum("bhd,bnd->bhn", q, keys.view(*slots.shape, -1)).relu()
    summed = (scores * weights.to(torch.bfloat16).unsqueeze(-1)).sum(1).float()
    return summed.masked_fill(torch.arange(slots.shape[1]) >= lens[:, None], -torch.inf)

"""Index scores in torch.

score(row, j) = Σ_h w_h max(0, q_h · k_j): one small query per index head against one key per global entry.

Source: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epd_kernels.paged import Paged

NEVER: Final = float("-inf")
_ROWS: Final = 128
_PRODUCTS: Final = 1 << 26  # query-key products held at once


@dataclass(frozen=True)
class Scores:
    """What `index_scores` gives.

    Attributes:
        values: [R, N]; -inf where there is nothing to see.
        maxima: [R, ceil(N / block)], the largest value of each block.
    """

    values: Tensor
    maxima: Tensor


@dataclass(frozen=True)
class Part:
    """Scores of some consecutive rows of one request.

    Attributes:
        rows: Which.
        values: [rows, n] of entries 0..n-1, or of those of `blocks`, one block behind the other.
        blocks: Rising numbers of the blocks scored; None means all.
    """

    rows: slice
    values: Tensor
    blocks: Tensor | None


def index_scores(  # noqa: PLR0917 -- tensors come in the order of every engine's call
    query: Tensor,
    weights: Tensor,
    keys: Paged,
    table: Tensor,
    requests: Tensor,
    visible: Tensor,
    *,
    columns: int,
    block: int,
    candidates: Tensor | None = None,
) -> Scores:
    """Score entries for each row, and find the best score of each block of entries.

    Column j is entry j; with candidates it is entry candidates[row, j // block] * block + j % block.

    Args:
        query: uint8 [R, heads, width], rows in the keys' format.
        weights: [R, heads]; results have its dtype.
        keys: The pool of index keys.
        table: i32 [B, P], pages of each request; -1 where it has none: those entries score -inf.
        requests: i32 [R], the request of each row; -1 for padding, which scores -inf everywhere.
        visible: i32 [R], how many entries the row sees, from entry 0 on.
        columns: Entries scored, without candidates.
        block: Entries in a block.
        candidates: i32 [R, C], rising block numbers, -1 behind the last.

    Returns:
        Scores with N = columns, or C * block with candidates.
    """
    width = columns if candidates is None else candidates.shape[1] * block
    values = weights.new_full((len(query), width), NEVER)
    if candidates is None:
        visible = visible.clamp(max=columns)
    for part in parts(query, weights, keys, table, requests, visible, block=block, candidates=candidates):
        if candidates is None or part.blocks is None:
            values[part.rows, : part.values.shape[1]] = part.values
        else:
            values[part.rows] = _spread(part.values, part.blocks, candidates[part.rows], block)
    return Scores(values, block_maxima(values, block))


def block_maxima(values: Tensor, block: int) -> Tensor:
    """The largest of each `block` columns [..., n]: [..., ceil(n / block)]; the last block may be smaller."""
    padded = functional.pad(values, (0, -values.shape[-1] % block), value=NEVER)
    maxima: Tensor = padded.unflatten(-1, (padded.shape[-1] // block, block)).amax(-1)
    return maxima


def parts(  # noqa: PLR0917 -- as `index_scores`
    query: Tensor,
    weights: Tensor,
    keys: Paged,
    table: Tensor,
    requests: Tensor,
    visible: Tensor,
    *,
    block: int,
    candidates: Tensor | None,
) -> Iterator[Part]:
    """The scores of all rows that see anything, a bounded number of rows at a time.

    Without candidates the keys of consecutive rows of a request are decoded once. Arguments as of `index_scores`.
    """
    end = 0
    runs = torch.unique_consecutive(requests, return_counts=True)
    for request, count in zip(*(each.tolist() for each in runs), strict=True):
        first, end = end, end + count
        seen = min(int(visible[first:end].max()), table.shape[1] * keys.page_size) if request >= 0 else 0
        if seen <= 0:
            continue
        stored = _stored(keys, table[request], seen)
        known = None if candidates is not None else _decoded(keys, stored, weights.dtype)
        step = max(1, min(_ROWS, _PRODUCTS // (query.shape[1] * seen)))
        for start in range(first, end, step):
            rows = slice(start, min(start + step, end))
            asked = _Asked(keys.codec.unpack(query[rows], keys.dim, weights.dtype), weights[rows], visible[rows])
            if known is not None:
                n = max(0, int(asked.visible.max()))
                yield Part(rows, _dense(asked, _Known(known.keys[:n], known.order[:n])), None)
            elif candidates is not None:
                held, inside, entries = _held(candidates[rows], seen, block)
                # Few entries are left: only theirs are decoded.
                chosen = _decoded(keys, _Stored(stored.rows[entries], stored.order[entries]), weights.dtype)
                forbidden = (~inside).repeat_interleave(block, 1)[:, : len(entries)]
                yield Part(rows, _dense(asked, chosen).masked_fill_(forbidden, NEVER), held)


class _Asked(NamedTuple):
    """Rows: queries [r, heads, dim], weights [r, heads], visible [r]."""

    query: Tensor
    weights: Tensor
    visible: Tensor


class _Stored(NamedTuple):
    """Bytes [n, width] of keys and the numbers [n] of their entries, beyond all numbers where no page is."""

    rows: Tensor
    order: Tensor


class _Known(NamedTuple):
    """Keys [n, dim], and the numbers as of `_Stored`."""

    keys: Tensor
    order: Tensor


def _decoded(keys: Paged, stored: _Stored, dtype: torch.dtype) -> _Known:
    return _Known(keys.codec.unpack(stored.rows, keys.dim, dtype), stored.order)


def _stored(keys: Paged, pages: Tensor, count: int) -> _Stored:
    """The first `count` entries of the request that has these pages."""
    order = torch.arange(count, device=pages.device)
    held = pages[: -(-count // keys.page_size)].long()
    page_bytes = keys.data[held.clamp(min=0)]
    codes = page_bytes[:, : keys.page_size * keys.code_stride]
    if keys.planar:
        scales = page_bytes[:, keys.scale_start :][:, : keys.page_size * keys.scale_bytes]
        codes, scales = codes.reshape(-1, keys.code_bytes), scales.reshape(-1, keys.scale_bytes)
        rows = torch.cat((codes[:count], scales[:count]), -1)
    else:
        rows = codes.reshape(-1, keys.code_stride)[:count]
    if bool((held < 0).any()):
        absent = (held < 0).repeat_interleave(keys.page_size)[:count]
        order = order.masked_fill(absent, torch.iinfo(torch.int64).max)
    return _Stored(rows, order)


def _dense(asked: _Asked, known: _Known) -> Tensor:
    """Scores [r, n], -inf where a row does not see an entry."""
    dots = (asked.query.flatten(0, 1) @ known.keys.mT).relu_().unflatten(0, asked.weights.shape)
    values: Tensor = (asked.weights[:, None] @ dots).squeeze(1)
    return values.masked_fill_(known.order >= asked.visible[:, None], NEVER)


def _held(candidates: Tensor, count: int, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """The blocks that any of these rows may look into [b], which row may [r, b], and their entries below `count`."""
    blocks = -(-count // block)
    allowed = torch.zeros(len(candidates), blocks + 1, dtype=torch.bool, device=candidates.device)
    inside = (candidates >= 0) & (candidates < blocks)
    allowed.scatter_(1, candidates.long().masked_fill(~inside, blocks), value=True)
    held = allowed[:, :blocks].any(0).nonzero().squeeze(1)
    entries = (held[:, None] * block + torch.arange(block, device=held.device)).flatten()
    return held, allowed[:, held], entries[entries < count]


def _spread(values: Tensor, blocks: Tensor, candidates: Tensor, block: int) -> Tensor:
    """Values [r, n] of `blocks` at each row's own candidates [r, C]: [r, C * block]."""
    places = torch.searchsorted(blocks, candidates.long()).clamp(max=max(len(blocks) - 1, 0))
    if not len(blocks):
        return values.new_full((len(values), candidates.shape[1] * block), NEVER)
    padded = functional.pad(values, (0, len(blocks) * block - values.shape[1]), value=NEVER)
    held = padded.unflatten(1, (len(blocks), block)).take_along_dim(places[..., None], 1)
    result: Tensor = held.masked_fill(blocks[places].ne(candidates)[..., None], NEVER).flatten(1)
    return result

"""Windowed attention over quantised latents, in torch.

Source: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a: one latent a token is key and value of all heads; a
row attends to the latents of its window and to its selected global entries, concatenated without removing overlaps; a
sink per head stands in the denominator and has no value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from epd_kernels.formats.reference import unpack

if TYPE_CHECKING:
    from torch import Tensor

    from epd_kernels.paged import Paged
    from epd_kernels.window_slots.reference import Slots

_NEVER: Final = float("-inf")
_ROWS: Final = 64
"""Rows at a time: near enough for their windows to overlap, few enough for each to have 512 latents of its own."""


@dataclass(frozen=True)
class Attended:
    """What rows have seen.

    Attributes:
        output: [R, heads, dim], of the query's type; zero where a row has no key.
        lse: [R, heads] float32 (float64 for float64 queries), log of the sum of exp(logit) over the keys, the sink not
            among them; -inf where a row has no key.
    """

    output: Tensor
    lse: Tensor


@dataclass(frozen=True)
class _Keys:
    """Latents of one pool and how often each row sees them.

    Attributes:
        latents: [n, dim] for all rows, or [rows, n, dim] for each row its own.
        bias: [rows, n], log of how often; -inf where not at all; None if all rows see each once.
    """

    latents: Tensor
    bias: Tensor | None

    def logits(self, query: Tensor) -> Tensor:
        """Of queries [rows, heads, dim]: [rows, heads, n]."""
        logits = query @ self.latents.transpose(-1, -2)
        return logits if self.bias is None else logits.add_(self.bias[:, None])


def attend(  # noqa: PLR0917 (its order is that of the formula)
    query: Tensor,
    window: Paged,
    slots: Slots,
    entries: Paged | None,
    selected: Tensor | None,
    sink: Tensor,
    *,
    scale: float,
) -> Attended:
    """Attend to window rows and selected entries, with one softmax over both.

    For row r, head h and its keys k (window rows, then entries; one that stands in both counts twice):
    logit = scale * query[r, h] . k; output[r, h] = sum exp(logit) k / (sum exp(logit) + exp(sink[h])).

    Args:
        query: [R, heads, dim]; computed in its type, bfloat16 in float32.
        window: Rows of `dim` values.
        slots: Of [R, window].
        entries: Rows of `dim` values; None without a selection.
        selected: [R, K] int32, slots of `entries`, -1 for none; None without entries.
        sink: [heads], finite.
        scale: Of the logits.

    Raises:
        ValueError: Shapes do not fit; names every fault.
    """
    check(query, window, slots, entries, selected, sink)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    output, lse = torch.empty_like(query), query.new_empty(query.shape[:2], dtype=dtype)
    for start in range(0, len(query), _ROWS):
        rows = slice(start, start + _ROWS)
        groups = [_keys(window, slots.slots[rows], dtype)]
        if entries is not None and selected is not None:
            groups.append(_keys(entries, selected[rows], dtype))
        mixed, lse[rows] = _softmax(query[rows].to(dtype) * scale, groups, sink.to(dtype))
        output[rows] = mixed.to(query.dtype)
    return Attended(output, lse)


def check(  # noqa: PLR0917 (as attend)
    query: Tensor, window: Paged, slots: Slots, entries: Paged | None, selected: Tensor | None, sink: Tensor
) -> None:
    """See that `attend` can work with these.

    Raises:
        ValueError: Shapes do not fit; names every fault.
    """
    if query.dim() != 3:
        raise ValueError(f"query is {tuple(query.shape)}: must be [rows, heads, dim]")
    rows, heads, dim = query.shape
    faults = []
    if (entries is None) != (selected is None):
        faults.append("entries and selected: give both or neither")
    if slots.slots.shape[:-1] != (rows,) or slots.counts.shape != (rows,):
        faults.append(f"slots are {tuple(slots.slots.shape)} with {len(slots.counts)} counts: there are {rows} queries")
    if selected is not None and selected.shape[:-1] != (rows,):
        faults.append(f"selected is {tuple(selected.shape)}: there are {rows} queries")
    if sink.shape != (heads,):
        faults.append(f"sink is {tuple(sink.shape)}: there are {heads} heads")
    for name, pool in (("window", window), ("entries", entries)):
        if pool is not None and pool.dim != dim:
            faults.append(f"{name} has rows of {pool.dim} values: queries have {dim}")
    if faults:
        raise ValueError("; ".join(faults))


def _softmax(query: Tensor, groups: list[_Keys], sink: Tensor) -> tuple[Tensor, Tensor]:
    """Output [rows, heads, dim] and lse [rows, heads] of scaled queries."""
    logits = torch.cat([keys.logits(query) for keys in groups], -1)
    # A finite maximum keeps rows without keys from -inf - -inf; a sink far above it divides by infinity, which is zero.
    top = logits.amax(-1).clamp_(min=torch.finfo(logits.dtype).min)
    weights = logits.sub_(top[..., None]).exp_()
    total = weights.sum(-1)
    parts = weights.split([keys.latents.shape[-2] for keys in groups], -1)
    mixed = torch.zeros_like(query)
    for part, keys in zip(parts, groups, strict=True):
        mixed += part @ keys.latents
    return mixed.div_((total + (sink - top).exp())[..., None]), top + total.log()


def _keys(pool: Paged, slots: Tensor, dtype: torch.dtype) -> _Keys:
    """Latents at slots [rows, n], each distinct one unpacked once; a first one of zeros stands for no slot.

    Rows that share most of their slots, as neighbours share their windows, take one matrix product with the distinct
    latents; others take a product with their own each.
    """
    if len(slots) == 1 and bool((slots >= 0).any()):
        return _Keys(unpack(pool, slots[slots >= 0], dtype), None)
    distinct, places = _distinct(slots)
    latents = unpack(pool, distinct, dtype)
    if len(distinct) > 2 * slots.shape[1]:
        own = latents.index_select(0, places.flatten()).view(*places.shape, pool.dim)
        return _Keys(own, torch.zeros_like(slots, dtype=dtype).masked_fill_(slots < 0, _NEVER))
    times = latents.new_zeros(len(slots), len(distinct))
    times.scatter_add_(1, places, torch.ones_like(places, dtype=dtype))
    times[:, 0] = 0
    return _Keys(latents, times.log_())


def _distinct(slots: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct slots [n], -1 and then those there are in rising order, and the place [rows, columns] of each.

    Marks the range in use instead of sorting, which takes longer than small models' attention.
    """
    first, last = (int(end) for end in torch.aminmax(slots)) if slots.numel() else (-1, -1)
    if first < 0:
        first = int(slots.masked_fill(slots < 0, last).min()) if last >= 0 else 0
    marks = (slots.long() - (first - 1)).clamp_(min=0)
    seen = torch.zeros(last - first + 2, dtype=torch.uint8, device=slots.device)
    seen.scatter_(0, marks.flatten(), 1)
    seen[0] = 1
    places = seen.cumsum(0).sub_(1).index_select(0, marks.flatten()).view_as(marks)
    distinct = seen.nonzero().squeeze(1).add_(first - 1)
    distinct[0] = -1
    return distinct, places

"""The call behind each line of the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from bench.kernels.inputs import EPS, Call, Inputs
from epd_kernels.formats.reference import INDEX

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from epd_kernels.dispatch import Operations
    from epd_kernels.paged import Paged


def _tail_layout(inputs: Inputs) -> Call:
    sizes, capacity = inputs.sizes, len(inputs.layout.rows)

    def run(operations: Operations) -> tuple[Tensor, ...]:
        policy = inputs.case.policy
        layout = operations.tail_layout(*inputs.lengths, window=sizes.window, policy=policy, capacity=capacity)
        return layout.rows, layout.positions, layout.floors, layout.requests, layout.starts

    names = ("extends", "lengths", "bases", "whole")
    return Call(run, {**dict(zip(names, inputs.lengths, strict=True)), **vars(inputs.layout)})


def _window_slots(inputs: Inputs) -> Call:
    layout, sizes, table = inputs.layout, inputs.sizes, inputs.table

    def run(operations: Operations) -> tuple[Tensor, ...]:
        where = (layout.positions, layout.floors, layout.requests, table)
        result = operations.window_slots(*where, page_size=sizes.page_size, window=sizes.window)
        return result.slots, result.counts

    read = {name: getattr(layout, name) for name in ("positions", "floors", "requests")}
    return Call(run, {**read, **vars(inputs.slots)})


def _entry_slots(inputs: Inputs) -> Call:
    chosen, requests, page_size = inputs.chosen, inputs.layout.requests, inputs.entries.page_size

    def run(operations: Operations) -> tuple[Tensor, ...]:
        return (operations.entry_slots(chosen, requests, inputs.table, page_size=page_size),)

    return Call(run, {"entries": chosen, "requests": requests, "slots": inputs.selected})


def _gather(inputs: Inputs, *trailing: int) -> Call:
    source, rows = inputs.normal(sum(inputs.case.extends), *trailing), inputs.layout.rows

    def run(operations: Operations) -> tuple[Tensor, ...]:
        return tuple(operations.gather_rows([source], rows))

    return Call(run, {"rows": rows, "gathered": source[rows]})


def _gather_hidden(inputs: Inputs) -> Call:
    return _gather(inputs, inputs.sizes.hidden)


def _gather_streams(inputs: Inputs) -> Call:
    return _gather(inputs, inputs.sizes.streams, inputs.sizes.hidden)


def _attend(inputs: Inputs, entries: Paged | None, selected: Tensor | None) -> Call:
    sizes = inputs.sizes
    query = inputs.normal(len(inputs.layout.rows), sizes.heads, sizes.head_dim)
    sink = inputs.normal(sizes.heads, dtype=torch.float32)

    def run(operations: Operations) -> tuple[Tensor, ...]:
        scale = sizes.head_dim**-0.5
        seen = operations.attend(query, inputs.window, inputs.slots, entries, selected, sink, scale=scale)
        return seen.output, seen.lse

    read = {"query": query, "sink": sink, "output": query}
    return Call(run, read if selected is None else {**read, "selected": selected})


def _attend_window(inputs: Inputs) -> Call:
    return _attend(inputs, None, None)


def _attend_entries(inputs: Inputs) -> Call:
    return _attend(inputs, inputs.entries, inputs.selected)


def _pack(inputs: Inputs, pool: Paged, count: int) -> Call:
    values = inputs.normal(count, pool.dim)
    slots = torch.randperm(pool.slots, generator=inputs.random, device=inputs.device)[:count].int()

    def run(operations: Operations) -> tuple[Tensor, ...]:
        operations.pack(values, pool, slots)
        return (pool.data,)

    return Call(run, {"values": values, "slots": slots})


def _pack_window(inputs: Inputs) -> Call:
    return _pack(inputs, inputs.window, len(inputs.layout.rows))


def _pack_main(inputs: Inputs) -> Call:
    return _pack(inputs, inputs.entries, inputs.case.new_entries())


def _pack_index(inputs: Inputs) -> Call:
    return _pack(inputs, inputs.keys, inputs.case.new_entries())


def _unpack(pool: Paged, slots: Tensor) -> Call:
    def run(operations: Operations) -> tuple[Tensor, ...]:
        return (operations.unpack(pool, slots, torch.bfloat16),)

    return Call(run, {"slots": slots})


def _unpack_window(inputs: Inputs) -> Call:
    return _unpack(inputs.window, torch.arange(len(inputs.layout.rows), dtype=torch.int32, device=inputs.device))


def _unpack_main(inputs: Inputs) -> Call:
    return _unpack(inputs.entries, inputs.selected[inputs.selected >= 0])


def _unpack_index(inputs: Inputs) -> Call:
    return _unpack(inputs.keys, torch.arange(inputs.case.new_entries(), dtype=torch.int32, device=inputs.device))


def _scores(inputs: Inputs, columns: int, candidates: Tensor | None) -> Call:
    sizes, layout = inputs.sizes, inputs.layout
    heads, rows = sizes.index_heads, len(layout.rows)
    query = inputs.rows(INDEX, sizes.index_dim, rows * heads).view(rows, heads, -1)
    weights = inputs.normal(rows, heads, dtype=torch.float32)

    def run(operations: Operations) -> tuple[Tensor, ...]:
        where = (inputs.keys, inputs.table, layout.requests, inputs.seen)
        scores = operations.index_scores(
            query, weights, *where, columns=columns, block=sizes.block, candidates=candidates
        )
        return scores.values, scores.maxima

    read = {"query": query, "weights": weights, "requests": layout.requests, "visible": inputs.seen}
    return Call(run, read if candidates is None else {**read, "candidates": candidates})


def _index_scores(inputs: Inputs) -> Call:
    return _scores(inputs, max(inputs.case.entries()), None)


def _candidates(inputs: Inputs) -> Tensor:
    """[R, blocks] int32, blocks in rising order, the newest among them; -1 behind the last."""
    sizes = inputs.sizes
    held = -(-inputs.seen[:, None].long() // sizes.block)
    columns = torch.arange(sizes.blocks, device=inputs.device)
    spread = torch.where(held > sizes.blocks, ((columns + 1) * held - 1) // sizes.blocks, columns)
    return spread.masked_fill(columns >= held, -1).int()


def _rescore(inputs: Inputs) -> Call:
    return _scores(inputs, inputs.sizes.blocks * inputs.sizes.block, _candidates(inputs))


def _candidate_blocks(inputs: Inputs) -> Call:
    sizes = inputs.sizes
    maxima = inputs.normal(len(inputs.seen), -(-max(inputs.case.entries()) // sizes.block), dtype=torch.float32)

    def run(operations: Operations) -> tuple[Tensor, ...]:
        return (operations.candidate_blocks(maxima, inputs.seen, block=sizes.block, count=sizes.blocks),)

    return Call(run, {"maxima": maxima, "visible": inputs.seen, "candidates": _candidates(inputs)})


def _top(inputs: Inputs, columns: int, candidates: Tensor | None) -> Call:
    sizes = inputs.sizes
    entries = torch.arange(columns, device=inputs.device)[None]
    if candidates is not None:
        first = candidates.long().repeat_interleave(sizes.block, 1) * sizes.block
        entries = (first + entries % sizes.block).masked_fill(first < 0, columns + max(inputs.case.lengths))
    hidden = entries >= inputs.seen[:, None]
    values = inputs.normal(len(inputs.seen), columns, dtype=torch.float32).masked_fill_(hidden, float("-inf"))

    def run(operations: Operations) -> tuple[Tensor, ...]:
        return (operations.top_entries(values, count=sizes.topk, candidates=candidates, block=sizes.block),)

    read = {"values": values, "entries": inputs.chosen}
    return Call(run, read if candidates is None else {**read, "candidates": candidates})


def _top_entries(inputs: Inputs) -> Call:
    return _top(inputs, max(inputs.case.entries()), None)


def _top_candidates(inputs: Inputs) -> Call:
    candidates = _candidates(inputs)
    return _top(inputs, candidates.shape[1] * inputs.sizes.block, candidates)


def _pool_pairs(inputs: Inputs) -> Call:
    case, dim = inputs.case, inputs.sizes.head_dim
    extends, lengths, _, _ = inputs.lengths
    firsts = lengths - extends
    starts = torch.cat((firsts.new_zeros(1), extends.cumsum(0))).int()
    projected = inputs.normal(sum(case.extends), 2, dim, dtype=torch.float32)
    pending = inputs.normal(len(extends), 2, dim, dtype=torch.float32)
    waiting = firsts % 2 == 1
    weight = inputs.normal(dim, dtype=torch.float32)
    capacity = int((lengths // 2 - firsts // 2).sum())

    def run(operations: Operations) -> tuple[Tensor, ...]:
        pairs = operations.pool_pairs(projected, starts, firsts, pending, waiting, weight, EPS, capacity=capacity)
        return pairs.latents, pairs.entries, pairs.requests, pairs.pending, pairs.waiting

    read = {"projected": projected, "starts": starts, "firsts": firsts, "waiting": waiting, "norm_weight": weight}
    return Call(run, read)


CALLS: Final[dict[str, Callable[[Inputs], Call]]] = {
    "tail_layout": _tail_layout,
    "window_slots": _window_slots,
    "entry_slots": _entry_slots,
    "gather_rows, hidden": _gather_hidden,
    "gather_rows, streams": _gather_streams,
    "attend, window": _attend_window,
    "attend, window and entries": _attend_entries,
    "pack, window": _pack_window,
    "pack, main": _pack_main,
    "pack, index": _pack_index,
    "unpack, window": _unpack_window,
    "unpack, main selected": _unpack_main,
    "unpack, index": _unpack_index,
    "index_scores": _index_scores,
    "index_scores, candidates": _rescore,
    "candidate_blocks": _candidate_blocks,
    "top_entries": _top_entries,
    "top_entries, candidates": _top_candidates,
    "pool_pairs": _pool_pairs,
}

"""Pooling of pairs of tokens, and what a chunk leaves unpaired.

An entry's bits depend on its two tokens alone, not on where they come from nor on what else a program pools: so any
division into chunks gives the same. They need not equal torch's: exponential and square root are the GPU's own.
"""

import triton
import triton.language as tl


@triton.jit
def _entry(order, starts, firsts, waiting, requests, SEARCHED: tl.constexpr):
    """Request, number in it and first token's row of the pairs `order` of the step; row -1 where the token waited.

    The request is how many end at or before a pair; behind the last pair it is `requests`.
    """
    request = tl.zeros_like(order)
    before = tl.zeros_like(order)
    total = 0
    for first in range(0, requests, SEARCHED):
        one = first + tl.arange(0, SEARCHED)
        known = one < requests
        start = tl.load(starts + one, mask=known, other=0)
        end = tl.load(starts + one + 1, mask=known, other=0)
        pairs = (end - start + tl.load(waiting + one, mask=known, other=0).to(tl.int32)) // 2
        passed = known[None, :] & (total + tl.cumsum(pairs, 0)[None, :] <= order[:, None])
        request += tl.sum(passed.to(tl.int32), 1)
        before += tl.sum(tl.where(passed, pairs[None, :], 0), 1)
        total += tl.sum(pairs, 0)
    known = request < requests
    waited = tl.load(waiting + request, mask=known, other=0).to(tl.int32)
    pair = order - before
    number = (tl.load(firsts + request, mask=known, other=0) - waited) // 2 + pair
    return request, number, tl.load(starts + request, mask=known, other=0), 2 * pair - waited


@triton.jit
def _pooled(content, gate, other_content, other_gate):
    """Two contents weighted by the softmax of their gates: the larger gate's exponential is 1."""
    smaller = tl.exp(-tl.abs(gate - other_gate))
    total = 1.0 + smaller
    first = gate >= other_gate
    weight = tl.where(first, 1.0, smaller) / total
    other_weight = tl.where(first, smaller, 1.0) / total
    return content * weight + other_content * other_weight


@triton.jit
def _keep(request, projected, starts, pending, waiting, left, left_waiting, DIM: tl.constexpr, COLUMNS: tl.constexpr):
    """Write what `request` leaves unpaired: its last token if it has rows, else the one that waits already."""
    column = tl.arange(0, COLUMNS)[None, :]
    used = column < DIM
    end = tl.load(starts + request + 1)
    rows = end - tl.load(starts + request)
    unpaired = (rows + tl.load(waiting + request).to(tl.int32)) % 2 == 1
    both = tl.arange(0, 2)[:, None] * DIM + column
    last = projected + (end - 1).to(tl.int64) * (2 * DIM)
    # How much of which row: Triton 3.9.0's interpreter takes no mask of a block and a scalar.
    taken = tl.where(unpaired & (rows > 0), DIM, 0)
    kept = tl.where(unpaired & (rows == 0), DIM, 0)
    value = tl.load(last + both, mask=column < taken, other=0.0)
    value += tl.load(pending + request * (2 * DIM) + both, mask=column < kept, other=0.0)
    tl.store(left + request * (2 * DIM) + both, value, mask=used)
    tl.store(left_waiting + request, unpaired.to(tl.int8))


@triton.jit(
    do_not_specialize=["requests", "capacity"],
    do_not_specialize_on_alignment=["starts", "firsts", "waiting", "entries", "owners", "left_waiting"],
)
def pool_pairs_kernel(
    projected,
    starts,
    firsts,
    pending,
    waiting,
    norm_weight,
    latents,
    entries,
    owners,
    left,
    left_waiting,
    requests,
    capacity,
    eps,
    DIM: tl.constexpr,
    ENTRIES: tl.constexpr,
    COLUMNS: tl.constexpr,
    SEARCHED: tl.constexpr,
):
    """Pool ENTRIES pairs, or keep one request's unpaired token.

    Writes: of the first cdiv(capacity, ENTRIES) programs, program i, and no other, the rows
    [i * ENTRIES, (i + 1) * ENTRIES) below `capacity` of `latents`, `entries` and `owners`; of the `requests` programs
    behind them, program b, and no other, row b of `left` and `left_waiting`.
    """
    column = tl.arange(0, COLUMNS)
    used = column < DIM
    tiles = tl.cdiv(capacity, ENTRIES)
    if tl.program_id(0) < tiles:
        order = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
        request, number, start, token = _entry(order, starts, firsts, waiting, requests, SEARCHED)
        known = request < requests
        tl.store(entries + order, tl.where(known, number, -1), mask=order < capacity)
        tl.store(owners + order, tl.where(known, request, -1), mask=order < capacity)

        near = known[:, None] & (token >= 0)[:, None] & used[None, :]
        old = known[:, None] & (token < 0)[:, None] & used[None, :]
        inside = known[:, None] & used[None, :]
        row = (start + token).to(tl.int64)[:, None]  # steps pass 2^31 values
        here = projected + row * (2 * DIM) + column[None, :]
        kept = pending + request[:, None] * (2 * DIM) + column[None, :]
        content = tl.load(here, mask=near, other=0.0) + tl.load(kept, mask=old, other=0.0)
        gate = tl.load(here + DIM, mask=near, other=0.0) + tl.load(kept + DIM, mask=old, other=0.0)
        other_content = tl.load(here + 2 * DIM, mask=inside, other=0.0)
        other_gate = tl.load(here + 3 * DIM, mask=inside, other=0.0)

        x = _pooled(content, gate, other_content, other_gate)
        root = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)
        weight = tl.load(norm_weight + column, mask=used, other=0.0)
        place = latents + order.to(tl.int64)[:, None] * DIM + column[None, :]
        tl.store(place, x * root[:, None] * weight[None, :], mask=(order < capacity)[:, None] & used[None, :])
    else:
        _keep(tl.program_id(0) - tiles, projected, starts, pending, waiting, left, left_waiting, DIM, COLUMNS)

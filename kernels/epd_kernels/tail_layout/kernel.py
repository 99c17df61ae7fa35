"""The layout of a step's tails in one launch."""

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["batch", "capacity", "window"],
    do_not_specialize_on_alignment=["extends", "lengths", "bases", "whole"],
)
def tail_layout_kernel(
    extends,
    lengths,
    bases,
    whole,
    rows,
    positions,
    floors,
    requests,
    starts,
    batch,
    capacity,
    window,
    FLOOR_AT_TAIL: tl.constexpr,
    ROWS: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    """Fill ROWS places.

    Every program walks all requests in blocks of REQUESTS, carrying the sums of rows and of tails so far, so that none
    waits for another. A place belongs to the request behind all those whose tails end at or before it.

    Writes: program i, and no other, the places [i * ROWS, (i + 1) * ROWS) of `rows`, `positions`, `floors` and
    `requests`, of those below `capacity`; program 0, and no other, all of `starts`.
    """
    first = tl.program_id(0) * ROWS
    places = first + tl.arange(0, ROWS)
    owner = tl.zeros([ROWS], tl.int32)
    tail_start = tl.zeros([ROWS], tl.int32)
    extend_start = tl.zeros([ROWS], tl.int32)
    tail_sum = tl.zeros([], tl.int32)
    if first == 0:
        tl.store(starts, 0)
    for block in range(0, batch, REQUESTS):
        numbers = block + tl.arange(0, REQUESTS)
        real = numbers < batch
        extend = tl.load(extends + numbers, mask=real, other=0)
        is_whole = tl.load(whole + numbers, mask=real, other=0) != 0
        tail = tl.where(is_whole, extend, tl.minimum(extend, window))
        ends = tail_sum + tl.cumsum(tail, 0)
        if first == 0:
            tl.store(starts + 1 + numbers, ends, mask=real)
        # Lanes behind the last request end where it ends: only padding passes them, and stays padding.
        passed = ends[None, :] <= places[:, None]  # [ROWS, REQUESTS]
        owner += tl.sum(passed.to(tl.int32), 1)
        tail_start += tl.sum(tl.where(passed, tail[None, :], 0), 1)
        extend_start += tl.sum(tl.where(passed, extend[None, :], 0), 1)
        tail_sum += tl.sum(tail, 0)

    inside = places < capacity
    used = owner < batch
    extend = tl.load(extends + owner, mask=used, other=0)
    length = tl.load(lengths + owner, mask=used, other=0)
    base = tl.load(bases + owner, mask=used, other=0)
    is_whole = tl.load(whole + owner, mask=used, other=0) != 0
    tail = tl.where(is_whole, extend, tl.minimum(extend, window))
    reach = length - tail if FLOOR_AT_TAIL else tl.maximum(length - window, 0)
    floor = tl.where(is_whole, base, tl.maximum(base, reach))
    behind = tail - (places - tail_start)  # rows from this one to the request's end, itself included
    row = (extend_start + extend - behind).to(tl.int64)
    tl.store(rows + places, tl.where(used, row, -1), mask=inside)
    tl.store(positions + places, tl.where(used, length - behind, -1), mask=inside)
    tl.store(floors + places, tl.where(used, floor, 0), mask=inside)
    tl.store(requests + places, tl.where(used, owner, -1), mask=inside)

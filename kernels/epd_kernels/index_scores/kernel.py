"""Index scores and the best score of each block of entries."""

import triton
import triton.language as tl

from epd_kernels.numerics import dot, e2m1_value, power_of_two


@triton.jit
def decode(codes, scales):
    """Bytes [n, GROUPS, 16] and scale bytes [n, GROUPS] to the even and the odd values, bfloat16 [n, GROUPS * 16] each.

    A product over all values may take them in any order, so the two halves are never interleaved. Codes have one
    mantissa bit and scales none: bfloat16 holds their product exactly.
    """
    scale = power_of_two(scales)[:, :, None]
    shape: tl.constexpr = [codes.shape[0], codes.shape[1] * codes.shape[2]]
    even = (e2m1_value(codes & 0xF) * scale).reshape(shape).to(tl.bfloat16)
    odd = (e2m1_value(codes >> 4) * scale).reshape(shape).to(tl.bfloat16)
    return even, odd


@triton.jit
def load_query(
    query, weights, first, rows, HEADS: tl.constexpr, H: tl.constexpr, GROUPS: tl.constexpr, M: tl.constexpr
):
    """Queries of M / H rows with all their heads: even and odd values [M, GROUPS * 16], weights float32 [M]."""
    line = tl.arange(0, M)
    head = line % H
    row = (first + line // H).to(tl.int64)
    inside = (row < rows) & (head < HEADS)
    groups = tl.arange(0, GROUPS)
    start = query + (row * HEADS + head) * (GROUPS * 17)
    places = (groups * 16)[:, None] + tl.arange(0, 16)[None, :]
    codes = tl.load(start[:, None, None] + places[None, :, :], mask=inside[:, None, None], other=0)
    scales = tl.load(start[:, None] + GROUPS * 16 + groups[None, :], mask=inside[:, None], other=0)
    even, odd = decode(codes, scales)
    return even, odd, tl.load(weights + row * HEADS + head, mask=inside, other=0.0)


@triton.jit
def load_keys(
    keys,
    table,
    entries,
    wanted,
    page_stride,
    GROUPS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    CODE_STRIDE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    SCALE_START: tl.constexpr,
):
    """Keys of `entries` [n]: even and odd values [n, GROUPS * 16], and whether there is a page (where `wanted`)."""
    page = tl.load(table + entries // PAGE_SIZE, mask=wanted, other=-1)
    present = page >= 0
    start = keys + page.to(tl.int64) * page_stride
    place = entries % PAGE_SIZE
    groups = tl.arange(0, GROUPS)
    places = (groups * 16)[:, None] + tl.arange(0, 16)[None, :]
    code_start = start + place * CODE_STRIDE
    codes = tl.load(code_start[:, None, None] + places[None, :, :], mask=present[:, None, None], other=0)
    scale_start = start + SCALE_START + place * SCALE_STRIDE
    scales = tl.load(scale_start[:, None] + groups[None, :], mask=present[:, None], other=0)
    even, odd = decode(codes, scales)
    return even, odd, present


@triton.jit
def store(
    values, maxima, score, row, member, tile, columns, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Write scores [COLUMNS, ROWS] of columns `tile`.. and their blocks' maxima to the rows that are `member`."""
    row = row.to(tl.int64)
    column = tile + tl.arange(0, COLUMNS)
    tl.store(
        values + row[None, :] * columns + column[:, None], score, mask=member[None, :] & (column < columns)[:, None]
    )
    width = (columns + BLOCK - 1) // BLOCK
    place = tile // BLOCK + tl.arange(0, COLUMNS // BLOCK)
    best = tl.max(score.reshape(COLUMNS // BLOCK, BLOCK, ROWS), 1)
    tl.store(maxima + row[None, :] * width + place[:, None], best, mask=member[None, :] & (place < width)[:, None])


@triton.jit(
    do_not_specialize=["rows", "pages", "table_stride", "candidates_stride"],
    do_not_specialize_on_alignment=["table", "requests", "visible"],
)
def index_scores_kernel(
    query,
    weights,
    keys,
    table,
    requests,
    visible,
    candidates,
    values,
    maxima,
    rows,
    columns,
    pages,
    page_stride,
    table_stride,
    candidates_stride,
    HEADS: tl.constexpr,
    H: tl.constexpr,
    GROUPS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    CODE_STRIDE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    SCALE_START: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Program (i, j) writes rows i * ROWS.. of `values` and `maxima` in columns j * TILES * COLUMNS.., and no others.

    Keys are decoded once for all rows of a program that belong to one request, one request after the other. With
    candidates, which differ from row to row, ROWS is 1.
    """
    first = tl.program_id(0) * ROWS
    start = tl.program_id(1) * (TILES * COLUMNS)
    end = tl.minimum(start + TILES * COLUMNS, columns)
    even, odd, weight = load_query(query, weights, first, rows, HEADS, H, GROUPS, ROWS * H)
    even, odd = even.T, odd.T  # [GROUPS * 16, ROWS * H]
    row = first + tl.arange(0, ROWS)
    request = tl.load(requests + row, mask=row < rows, other=-1)
    limit = tl.load(visible + row, mask=row < rows, other=0)
    limit = tl.where(request >= 0, tl.minimum(limit, pages * PAGE_SIZE), 0)
    if candidates is not None:
        candidates += first.to(tl.int64) * candidates_stride
    previous = -2
    for turn in range(ROWS):
        # All rows from this one on that belong to its request, unless they have just had their turn.
        current = tl.load(requests + first + turn, mask=first + turn < rows, other=-2)
        # No row has request -2. (Triton 3.9.0's interpreter takes no mask of a block and a scalar.)
        served = tl.where(current != previous, current, -2)
        member = (request == served) & (row >= first + turn) & (row < rows)
        previous = current
        stop = tl.where(tl.max(member.to(tl.int32), 0) > 0, end, start)
        seen = tl.where(member, limit, 0)
        most = tl.max(seen, 0)
        last = tl.minimum(tl.maximum(most, start), stop) if candidates is None else tl.where(most > 0, stop, start)
        last = start + tl.cdiv(last - start, COLUMNS) * COLUMNS
        own_pages = table + tl.maximum(current, 0).to(tl.int64) * table_stride
        for tile in range(start, last, COLUMNS):
            entries = tile + tl.arange(0, COLUMNS)
            wanted = entries < columns
            if candidates is not None:
                blocks = tl.load(candidates + entries // BLOCK, mask=wanted, other=-1)
                wanted = wanted & (blocks >= 0)
                entries = blocks * BLOCK + entries % BLOCK
            key_even, key_odd, present = load_keys(
                keys,
                own_pages,
                entries,
                wanted & (entries < most),
                page_stride,
                GROUPS,
                PAGE_SIZE,
                CODE_STRIDE,
                SCALE_STRIDE,
                SCALE_START,
            )
            dots = dot(key_even, even) + dot(key_odd, odd)  # [COLUMNS, ROWS * H]
            weighted = tl.maximum(dots, 0.0) * weight[None, :]
            score = tl.sum(weighted.reshape(COLUMNS, ROWS, H), 2)
            score = tl.where(present[:, None] & (entries[:, None] < seen[None, :]), score, float("-inf"))
            store(values, maxima, score, row, member, tile, columns, BLOCK, ROWS, COLUMNS)
        for tile in range(last, stop, COLUMNS):
            score = tl.full((COLUMNS, ROWS), float("-inf"), dtype=tl.float32)
            store(values, maxima, score, row, member, tile, columns, BLOCK, ROWS, COLUMNS)

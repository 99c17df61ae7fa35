"""Walks over a page table, one slot a lane."""

import triton
import triton.language as tl


@triton.jit
def _walk(wanted, valid, request, table, table_stride, pages, PAGE_SIZE: tl.constexpr):
    """Slots [ROWS, COLUMNS] of places in the pages of requests [ROWS]; -1 where a place is not valid or has no page."""
    index = wanted // PAGE_SIZE
    present = valid & (index < pages)
    line = table + request.to(tl.int64)[:, None] * table_stride
    page = tl.load(line + index, mask=present, other=-1)
    return tl.where(page >= 0, page * PAGE_SIZE + wanted % PAGE_SIZE, -1)


@triton.jit(
    do_not_specialize=["count", "table_stride", "pages"],
    do_not_specialize_on_alignment=["positions", "floors", "requests", "table"],
)
def window_slots_kernel(
    positions,
    floors,
    requests,
    table,
    slots,
    counts,
    count,
    table_stride,
    pages,
    PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Find COLUMNS of the slots of ROWS rows.

    Writes: program (i, j), and no other, columns [j * COLUMNS, (j + 1) * COLUMNS) below WINDOW of the rows
    [i * ROWS, (i + 1) * ROWS) below `count` of `slots`; program (i, 0), and no other, those rows of `counts`.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = row < count
    position = tl.load(positions + row, mask=inside, other=-1)
    floor = tl.load(floors + row, mask=inside, other=0)
    request = tl.load(requests + row, mask=inside, other=-1)
    first = tl.maximum(floor, position - (WINDOW - 1))
    length = tl.where(request >= 0, tl.maximum(position - first + 1, 0), 0)
    if tl.program_id(1) == 0:
        tl.store(counts + row, length, mask=inside)
    valid = column[None, :] < length[:, None]
    result = _walk(first[:, None] + column[None, :], valid, request, table, table_stride, pages, PAGE_SIZE)
    place = slots + row.to(tl.int64)[:, None] * WINDOW + column[None, :]
    tl.store(place, result, mask=inside[:, None] & (column < WINDOW)[None, :])


@triton.jit(
    do_not_specialize=["count", "table_stride", "pages"],
    do_not_specialize_on_alignment=["requests", "table"],
)
def entry_slots_kernel(
    entries,
    requests,
    table,
    slots,
    count,
    width,
    entry_stride,
    table_stride,
    pages,
    PAGE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Find COLUMNS of the slots of ROWS rows.

    Writes: program (i, j), and no other, columns [j * COLUMNS, (j + 1) * COLUMNS) below `width` of the rows
    [i * ROWS, (i + 1) * ROWS) below `count` of `slots`.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < count)[:, None] & (column < width)[None, :]
    request = tl.load(requests + row, mask=row < count, other=-1)
    line = row.to(tl.int64)[:, None]
    entry = tl.load(entries + line * entry_stride + column[None, :], mask=inside, other=-1)
    valid = (entry >= 0) & (request >= 0)[:, None]
    result = _walk(entry, valid, request, table, table_stride, pages, PAGE_SIZE)
    tl.store(slots + line * width + column[None, :], result, mask=inside)

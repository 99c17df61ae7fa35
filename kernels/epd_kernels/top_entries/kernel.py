"""The best entries of each row."""

import triton
import triton.language as tl

from epd_kernels.selection.kernel import choose


@triton.jit(do_not_specialize=["rows", "candidates_stride"])
def top_entries_kernel(
    values,
    candidates,
    entries,
    rows,
    columns,
    values_stride,
    candidates_stride,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program i writes rows i * ROWS.. of `entries` [R, COUNT] alone, each element once."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    inside = row < rows
    row = row.to(tl.int64)
    if candidates is not None:
        candidates += row * candidates_stride
    newest = tl.full((ROWS, 1), -1, dtype=tl.int32)
    out = entries + row * COUNT
    choose(values + row * values_stride, out, inside, columns, newest, candidates, COUNT, BLOCK, ROWS, TILE)

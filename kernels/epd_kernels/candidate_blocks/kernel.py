"""Candidate blocks of each row."""

import triton
import triton.language as tl

from epd_kernels.selection.kernel import choose


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["visible"])
def candidate_blocks_kernel(
    maxima,
    visible,
    blocks,
    rows,
    columns,
    maxima_stride,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program i writes rows i * ROWS.. of `blocks` [R, COUNT] alone, each element once."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    inside = row < rows
    seen = tl.load(visible + row, mask=inside, other=0)
    newest = (seen + BLOCK - 1) // BLOCK - 1  # never a division of a negative number, which rounds towards zero
    row = row.to(tl.int64)
    out = blocks + row * COUNT
    choose(maxima + row * maxima_stride, out, inside, columns, newest, None, COUNT, 1, ROWS, TILE)

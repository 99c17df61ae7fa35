"""Copies of rows, as words of whatever size: no value is ever interpreted."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["rows"])
def gather_rows_kernel(
    source,
    rows,
    output,
    source_stride,
    count,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Copy WORDS words of ROWS rows.

    Writes: program (i, j), and no other, words [j * WORDS, (j + 1) * WORDS) below WIDTH of the rows
    [i * ROWS, (i + 1) * ROWS) below `count` of `output`.
    """
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = (place < count)[:, None] & (word < WIDTH)[None, :]
    row = tl.load(rows + place, mask=place < count, other=-1)  # int64: sources pass 2^31 words
    values = tl.load(source + row[:, None] * source_stride + word[None, :], mask=inside & (row >= 0)[:, None], other=0)
    tl.store(output + place.to(tl.int64)[:, None] * WIDTH + word[None, :], values, mask=inside)

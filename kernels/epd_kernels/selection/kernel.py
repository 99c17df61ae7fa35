"""The k largest of each row, exactly: shared by the kernels that choose entries and blocks.

Scores become integers of the same order, whose k-th largest is found digit by digit: four passes count the digits of
the keys that are still in question. A fifth pass writes the chosen columns in rising order, placed by a running count.
Counts are integers, so results depend on no order. One program owns ROWS rows: it alone writes their chosen columns.
"""

import triton
import triton.language as tl


@triton.jit
def load_keys(values, inside, start, n, newest, TILE: tl.constexpr):
    """Columns [1, TILE] from `start` on and their keys [ROWS, TILE], unsigned, in the order of the float32 scores.

    The key is 0 for -inf and where nothing is, and the most of all for the column `newest`.
    """
    columns = start + tl.arange(0, TILE)[None, :]
    scores = tl.load(values + columns, mask=inside & (columns < n), other=float("-inf"))
    bits = scores.to(tl.uint32, bitcast=True)
    bits = tl.where(bits == 0x80000000, 0, bits)  # -0.0 equals 0.0
    keys = bits ^ tl.where(bits >= 0x80000000, 0xFFFFFFFF, 0x80000000)
    keys = tl.where(columns == newest, 0xFFFFFFFF, keys)
    return columns, tl.where(bits == 0xFF800000, 0, keys).to(tl.uint32)


@triton.jit
def kth_largest(values, inside, n, newest, COUNT: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr):
    """The smallest key that is chosen [ROWS, 1], and how many equal to it are [ROWS, 1].

    Of fewer than COUNT keys all are chosen; of none, none equals the smallest.
    """
    digits = tl.arange(0, 256)[None, :]
    first_bin = tl.arange(0, ROWS)[:, None] * 256
    edge = tl.full((ROWS, 1), 0, dtype=tl.uint32)
    wanted = tl.full((ROWS, 1), COUNT, dtype=tl.int32)
    for place in range(4):
        shift = 24 - 8 * place
        counts = tl.full((ROWS * 256,), 0, dtype=tl.int32)
        for start in range(0, n, TILE):
            _, keys = load_keys(values, inside, start, n, newest, TILE)
            rest = keys >> shift
            asked = (keys != 0) & ((rest >> 8) == edge)
            bins = first_bin + (rest & 0xFF).to(tl.int32)
            counts += tl.histogram(bins.reshape(ROWS * TILE), ROWS * 256, mask=asked.reshape(ROWS * TILE))
        own = counts.reshape(ROWS, 256)
        least = tl.cumsum(own, 1, reverse=True)  # keys whose digit is at least this one
        wanted = tl.minimum(wanted, tl.max(least, 1, keep_dims=True))
        digit = tl.sum((least >= wanted).to(tl.int32), 1, keep_dims=True) - 1
        wanted -= tl.sum(tl.where(digits == digit, least - own, 0), 1, keep_dims=True)
        edge = (edge << 8) | digit.to(tl.uint32)
    return edge, wanted


@triton.jit
def choose(
    values,
    out,
    inside,
    n,
    newest,
    candidates,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the columns of the COUNT largest of each row of n to `out`, rising, then -1.

    Args:
        values: Pointers [ROWS, 1] to float32 [n].
        out: Pointers [ROWS, 1] to int32 [COUNT].
        inside: [ROWS, 1], which rows there are.
        n: Columns.
        newest: [ROWS, 1], a column that is chosen first of all, unless it is -inf; -1 for none.
        candidates: None, or pointers [ROWS, 1] to int32 [n / BLOCK]: column j stands for
            candidates[j // BLOCK] * BLOCK + j % BLOCK.
        COUNT: Columns chosen at most.
        BLOCK: Columns of a candidate.
        ROWS: Rows.
        TILE: Columns looked at together.
    """
    edge = tl.full((ROWS, 1), 0, dtype=tl.uint32)
    wanted = tl.full((ROWS, 1), 0, dtype=tl.int32)
    if n > COUNT:
        edge, wanted = kth_largest(values, inside, n, newest, COUNT, ROWS, TILE)
    above = tl.full((ROWS, 1), 0, dtype=tl.int32)
    level = tl.full((ROWS, 1), 0, dtype=tl.int32)
    for start in range(0, n, TILE):
        columns, keys = load_keys(values, inside, start, n, newest, TILE)
        is_above = keys > edge
        is_level = keys == edge
        # Two running counts in one scan: a tile has fewer than 2^15 columns.
        ones = is_above.to(tl.int32) + (is_level.to(tl.int32) << 16)
        running = tl.cumsum(ones, 1) - ones
        levels = level + (running >> 16)
        chosen = inside & (is_above | (is_level & (levels < wanted)))
        places = above + (running & 0xFFFF) + tl.minimum(levels, wanted)
        entries = columns
        if candidates is not None:
            blocks = tl.load(candidates + columns // BLOCK, mask=chosen, other=0)
            entries = blocks * BLOCK + columns % BLOCK
        tl.store(out + places, entries, mask=chosen)
        total = tl.sum(ones, 1, keep_dims=True)
        above += total & 0xFFFF
        level += total >> 16
    kept = above + tl.minimum(level, wanted)
    for start in range(0, COUNT, TILE):
        places = start + tl.arange(0, TILE)[None, :]
        absent = inside & (places >= kept) & (places < COUNT)
        tl.store(out + places, tl.full((ROWS, TILE), -1, dtype=tl.int32), mask=absent)

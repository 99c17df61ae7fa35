"""Least bytes and matrix operations of every operation, from sizes alone.

What is counted: every tensor that an operation takes or gives crosses the memory bus once. Of a pool only the rows that
are read count, and of a page table only the entries. Caches are taken to be perfect where one call reads a row again,
unless the caller gives a larger number of rows: `entry_rows` of `attend` is rows times entries where nothing is reused.
Floating point is float32 where the launch keeps it so, bfloat16 (2 bytes) for activations; indices are int32 but for
rows (int64).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.kernels.cost import Cost, cost
from epd_kernels.formats.reference import INDEX, MAIN, WINDOW

if TYPE_CHECKING:
    from epd_kernels.formats.reference import Codec

INT: Final = 4
LONG: Final = 8
FLOAT: Final = 4
HALF: Final = 2
FLAG: Final = 1


def tail_layout(*, requests: int, rows: int) -> Cost:
    """`requests` extends to `rows` tail rows."""
    return cost(
        {"extends": INT * requests, "lengths": INT * requests, "bases": INT * requests, "whole": FLAG * requests},
        {
            "rows": LONG * rows,
            "positions": INT * rows,
            "floors": INT * rows,
            "requests": INT * rows,
            "starts": INT * (requests + 1),
        },
    )


def window_slots(*, rows: int, window: int, pages: int) -> Cost:
    """`window` slots for each row, out of `pages` entries of the page table."""
    return cost(
        {"positions": INT * rows, "floors": INT * rows, "requests": INT * rows, "table": INT * pages},
        {"slots": INT * rows * window, "counts": INT * rows},
    )


def entry_slots(*, rows: int, count: int, pages: int) -> Cost:
    """`count` slots for each row, out of `pages` entries of the page table."""
    return cost(
        {"entries": INT * rows * count, "requests": INT * rows, "table": INT * pages}, {"slots": INT * rows * count}
    )


def gather_rows(*, rows: int, width: int) -> Cost:
    """`rows` rows of `width` bytes."""
    return cost({"rows": LONG * rows, "source": rows * width}, {"gathered": rows * width})


def attend(
    *,
    rows: int,
    heads: int,
    dim: int,
    window_pairs: int,
    window_rows: int,
    topk: int = 0,
    entry_pairs: int = 0,
    entry_rows: int = 0,
) -> Cost:
    """One softmax over window rows and selected entries.

    Args:
        rows: Query rows.
        heads: Query heads.
        dim: Values of a latent.
        window_pairs: Window keys of all rows together.
        window_rows: Window rows that are read from memory.
        topk: Columns of the selection; 0 without one.
        entry_pairs: Entries of all rows together.
        entry_rows: Entries that are read from memory: `entry_pairs` without any reuse between rows.
    """
    reads = {
        "query": HALF * rows * heads * dim,
        "slots": INT * window_pairs,
        "window": window_rows * WINDOW.width(dim),
        "sink": FLOAT * heads,
    }
    if topk:
        reads |= {"selected": INT * rows * topk, "entries": entry_rows * MAIN.width(dim)}
    writes = {"output": HALF * rows * heads * dim, "lse": FLOAT * rows * heads}
    # Each key is multiplied twice: once for its score, once as a value.
    return cost(reads, writes, flops=2 * 2 * heads * dim * (window_pairs + entry_pairs))


def pack(*, rows: int, dim: int, codec: Codec) -> Cost:
    """`rows` rows of bfloat16 into a pool."""
    return cost({"values": HALF * rows * dim, "slots": INT * rows}, {"pool": rows * codec.width(dim)})


def unpack(*, rows: int, dim: int, codec: Codec, pool_rows: int | None = None) -> Cost:
    """`rows` rows out of a pool as bfloat16, of which `pool_rows` are read from memory (all without reuse)."""
    read = rows if pool_rows is None else pool_rows
    return cost({"pool": read * codec.width(dim), "slots": INT * rows}, {"values": HALF * rows * dim})


def index_scores(
    *,
    rows: int,
    heads: int,
    dim: int,
    pairs: int,
    key_rows: int,
    columns: int,
    block: int,
    pages: int,
    candidates: int = 0,
) -> Cost:
    """Scores of every visible key, and the maximum of each block.

    Args:
        rows: Query rows.
        heads: Index heads.
        dim: Values of an index key.
        pairs: Keys of all rows together.
        key_rows: Keys that are read from memory.
        columns: Scores written for each row.
        block: Keys of a block.
        pages: Entries of the page table that are read.
        candidates: Candidate blocks given for each row; 0 without.
    """
    reads = {
        "query": rows * heads * INDEX.width(dim),
        "weights": FLOAT * rows * heads,
        "keys": key_rows * INDEX.width(dim),
        "table": INT * pages,
        "requests": INT * rows,
        "visible": INT * rows,
    }
    if candidates:
        reads["candidates"] = INT * rows * candidates
    writes = {"values": FLOAT * rows * columns, "maxima": FLOAT * rows * -(-columns // block)}
    return cost(reads, writes, flops=2 * heads * dim * pairs)


def candidate_blocks(*, rows: int, blocks: int, count: int) -> Cost:
    """The best `count` of `blocks` blocks for each row."""
    return cost({"maxima": FLOAT * rows * blocks, "visible": INT * rows}, {"candidates": INT * rows * count})


def top_entries(*, rows: int, columns: int, count: int, candidates: int = 0) -> Cost:
    """The best `count` of `columns` scores for each row."""
    reads = {"values": FLOAT * rows * columns}
    if candidates:
        reads["candidates"] = INT * rows * candidates
    return cost(reads, {"entries": INT * rows * count})


def pool_pairs(*, tokens: int, entries: int, requests: int, waiting: int, dim: int) -> Cost:
    """Pairs of `tokens` tokens pooled to `entries` latents; `waiting` requests bring a partner from before."""
    pair = 2 * FLOAT * dim
    return cost(
        {
            "projected": pair * tokens,
            "starts": INT * (requests + 1),
            "firsts": INT * requests,
            "pending": pair * waiting,
            "waiting": FLAG * requests,
            "norm_weight": FLOAT * dim,
        },
        {
            "latents": FLOAT * dim * entries,
            "entries": INT * entries,
            "requests": INT * entries,
            "next_pending": pair * requests,
            "next_waiting": FLAG * requests,
        },
    )

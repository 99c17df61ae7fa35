"""The fused attention moves no byte twice in a program, and in all little more than it must."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from bench.kernels.case import Case
from bench.kernels.inputs import Inputs
from bench.kernels.registry import find
from epd_kernels.attention.launch import launches_attend
from epd_kernels.launching import Launch
from epd_kernels.sizes import RELEASED
from tests.kernels.interpreted.trace import Trace, trace

MOST = 1.15
PAGE = Path(__file__).resolve().parents[3] / "docs/kernels.md"
TAIL = Case("the last rows of a prompt", extends=(600,), lengths=(600,))
WHOLE = Case("rows with whole windows", extends=(8,), lengths=(600,), whole=True)
SMALL = replace(RELEASED, heads=16, head_dim=64, window=32, topk=128, page_size=64)
"""A quarter of the heads, of the window and of the selection: shares of the traffic are the released ones."""


def attention(case: Case, sizes: Any, *, entries: bool = True, splits: int = 1) -> list[Launch]:
    inputs = Inputs(case, sizes, torch.device("cpu"))
    query = inputs.normal(case.rows(sizes.window), sizes.heads, sizes.head_dim)
    sink = inputs.normal(sizes.heads, dtype=torch.float32)
    pool, selected = (inputs.entries, inputs.selected) if entries else (None, None)
    _, launches = launches_attend(query, inputs.window, inputs.slots, pool, selected, sink, scale=0.1, splits=splits)
    return launches


@cache
def traced(case: Case, sizes: Any, *, entries: bool = True) -> Trace:
    (launch,) = attention(case, sizes, entries=entries)
    return trace(launch)


def memory(actual: Trace) -> int:
    """Bytes from and to memory where window rows and sinks are read again from a cache."""
    shared = [actual.loads[name] for name in ("window", "sink")]
    return actual.loaded + actual.stored - sum(span.moved - span.distinct for span in shared)


@pytest.mark.parametrize("entries", [True, False], ids=["entries", "window"])
@pytest.mark.parametrize(
    ("case", "sizes"),
    [
        pytest.param(TAIL, SMALL, id="tail"),
        pytest.param(WHOLE, SMALL, id="whole"),
        pytest.param(TAIL, RELEASED, id="tail-released", marks=pytest.mark.nightly),
        pytest.param(WHOLE, RELEASED, id="whole-released", marks=pytest.mark.nightly),
    ],
)
def test_attention_moves_little_more_than_it_must(case: Case, sizes: Any, entries: bool) -> None:
    actual = traced(case, sizes, entries=entries)
    assert {name: span.repeated for name, span in actual.loads.items() if span.repeated} == {}
    least = find("attend, window and entries" if entries else "attend, window").least(case, sizes)
    # As the registry counts: a window row comes once, an entry once for every row that has selected it.
    assert least.bytes <= memory(actual) <= MOST * least.bytes
    assert actual.loads["window"].distinct == least["window"]
    assert actual.loads["query"].moved == least["query"]
    assert actual.stores["output"].moved == least["output"]
    assert actual.stores["lse"].moved == least["lse"]
    if entries:
        assert actual.loads["entries"].moved == least["entries"]
        assert actual.loads["selected"].moved == least["selected"]


def test_the_tail_stays_below_the_bound_without_any_cache() -> None:
    actual = traced(TAIL, SMALL)
    least = find("attend, window and entries").least(TAIL, SMALL)
    # Row i of the tail sees i + 1 window rows, and its program reads each of them once.
    assert actual.loads["window"].moved == TAIL.window_pairs(SMALL.window) * (64 + 2)
    assert actual.loaded + actual.stored <= MOST * least.bytes


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("case", "words"),
    [(TAIL, "last 128 rows of a prompt"), (WHOLE, "8 rows with whole windows")],
    ids=["tail", "whole"],
)
def test_the_page_tells_these_ratios(case: Case, words: str) -> None:
    actual, least = traced(case, RELEASED), find("attend, window and entries").least(case, RELEASED).bytes
    reported = f"| {words} | {memory(actual) / least:.3f} | {(actual.loaded + actual.stored) / least:.3f} |"
    assert reported in PAGE.read_text(encoding="utf-8")


def test_split_keys_are_read_once_and_the_parts_once() -> None:
    attend, merge = attention(WHOLE, SMALL, splits=3)
    whole, parts, merged = traced(WHOLE, SMALL), trace(attend), trace(merge)
    for name in ("window", "entries", "selected", "slots"):
        assert parts.loads[name].moved == whole.loads[name].moved
    assert all(span.repeated == 0 for item in (parts, merged) for span in item.loads.values())
    # Three partial outputs and sums of 8 rows, 16 heads, 64 values, in float32: written once, read once.
    assert parts.stored == merged.loads["parts"].moved + merged.loads["parts_lse"].moved == 3 * 8 * 16 * (64 + 1) * 4


def test_small_blocks_of_heads_are_seen_to_read_keys_again() -> None:
    (launch,) = attention(WHOLE, SMALL)
    split = replace(launch, grid=(launch.grid[0], 4, 1), options={**launch.options, "BLOCK_HEADS": 4})
    actual, narrow = traced(WHOLE, SMALL), trace(split)
    least = find("attend, window and entries").least(WHOLE, SMALL)
    assert narrow.loads["entries"].moved == 4 * actual.loads["entries"].moved
    assert memory(narrow) > MOST * least.bytes
    assert all(span.repeated == 0 for span in narrow.loads.values())


@triton.jit  # type: ignore[untyped-decorator]
def wasteful(source: Any, target: Any, size: tl.constexpr) -> None:
    """Loads a row twice, its second half a third time, and stores it twice."""
    places = tl.program_id(0) * size + tl.arange(0, size)
    once = tl.load(source + places)
    again = tl.load(source + places, mask=places >= 0, other=0)
    half = tl.load(source + places, mask=places % size >= size // 2, other=0)
    tl.store(target + places, once)
    tl.store(target + places, again + half, mask=places >= 0)


def test_a_wasteful_kernel_is_found_out() -> None:
    source, target = torch.arange(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    actual = trace(Launch(wasteful, (2,), (source, target), {"size": 16}, ("target",)))
    loads, stores = actual.loads["source"], actual.stores["target"]
    assert (loads.moved, loads.repeated, loads.distinct) == (2 * 160, 2 * 96, 128)
    assert (stores.moved, stores.repeated, stores.distinct) == (256, 128, 128)
    assert (actual.loaded, actual.stored) == (320, 256)


def test_the_same_byte_read_by_two_programs_is_not_a_repetition() -> None:
    source, target = torch.arange(16, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)
    actual = trace(Launch(same_row, (3,), (source, target), {"size": 16}, ("target",)))
    assert (actual.loads["source"].moved, actual.loads["source"].distinct) == (3 * 64, 64)
    assert actual.loads["source"].repeated == 0


@triton.jit  # type: ignore[untyped-decorator]
def same_row(source: Any, target: Any, size: tl.constexpr) -> None:
    """Every program copies the same row."""
    places = tl.arange(0, size)
    tl.store(target + places, tl.load(source + places))


def test_an_address_outside_of_all_arguments_is_an_error() -> None:
    # The row behind exists, in no argument's view.
    source, target = torch.arange(64, dtype=torch.int32)[:16], torch.zeros(32, dtype=torch.int32)
    with pytest.raises(InterpreterError, match="is in no argument"):
        trace(Launch(wasteful, (2,), (source, target), {"size": 16}, ("target",)))

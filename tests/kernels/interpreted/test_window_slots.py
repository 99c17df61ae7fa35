"""Page-table walks: kernel and torch against a walk of one slot at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_kernels.architecture import Architecture
from epd_kernels.window_slots import launch, reference
from epd_kernels.window_slots.tiles import TILES
from tests.kernels.oracle_window_slots import slot, window
from tests.kernels.ragged import ints

if TYPE_CHECKING:
    from types import ModuleType

OPERATIONS = pytest.mark.parametrize("operation", [reference, launch], ids=["torch", "triton"])


def check_window(rows: list[tuple[int, int, int]], pages: list[list[int]], page_size: int, size: int) -> None:
    """Rows are (position, floor, request)."""
    table = torch.tensor(pages, dtype=torch.int32).reshape(len(pages), -1)
    columns = [ints([row[i] for row in rows]) for i in range(3)]
    wanted = [window(*row, pages, page_size, size) for row in rows]
    for operation in (reference.window_slots, launch.window_slots):
        actual = operation(columns[0], columns[1], columns[2], table, page_size=page_size, window=size)
        assert actual.slots.dtype == actual.counts.dtype == torch.int32
        assert actual.slots.shape == (len(rows), size)
        assert actual.slots.tolist() == [slots for slots, _ in wanted]
        assert actual.counts.tolist() == [count for _, count in wanted]


def check_entries(entries: list[list[int]], requests: list[int], pages: list[list[int]], page_size: int) -> None:
    width = len(entries[0]) if entries else 0
    table = torch.tensor(pages, dtype=torch.int32).reshape(len(pages), -1)
    chosen = torch.tensor(entries, dtype=torch.int32).view(len(requests), width)
    wanted = [
        [slot(entry, request, pages, page_size) for entry in row]
        for row, request in zip(entries, requests, strict=True)
    ]
    for operation in (reference.entry_slots, launch.entry_slots):
        actual = operation(chosen, ints(requests), table, page_size=page_size)
        assert actual.dtype == torch.int32
        assert actual.shape == chosen.shape
        assert actual.tolist() == wanted


@pytest.mark.parametrize("page_size", [64, 128, 256])
def test_window_edges_at_released_sizes(page_size: int) -> None:
    pages = [[7, 3, 12, 5, 900, 2, 1, 0], [4, -1, -1, 6, -1, 8, 9, 10]]
    edge = 2 * page_size
    rows = [
        (0, 0, 0),
        (1, 0, 0),
        (126, 0, 0),
        (127, 0, 0),
        (128, 0, 0),
        (edge + 30, edge - 20, 0),  # floor inside a page
        (edge + 30, edge, 0),  # floor at a page's edge
        (edge - 1, 0, 0),  # the window ends with a page
        (edge, 0, 0),
        (edge + 5, 0, 0),  # over two pages
        (edge + 5, edge + 5, 0),  # only itself
        (edge + 5, 0, 1),  # evicted pages
        (4 * page_size - 1, 0, 1),
        (4 * page_size + 100, 0, 1),
        (8 * page_size - 1, 0, 0),  # the last slot
        (8 * page_size + 3, 0, 0),  # behind the table
        (-1, 0, -1),  # padding
    ]
    check_window(rows, pages, page_size, 128)


@pytest.mark.parametrize("rows", [0, 1, 65])
def test_any_number_of_rows(rows: int) -> None:
    check_window([(200 + i, 100, i % 2) for i in range(rows)], [[3, 1, 4, 0, 5], [9, 2, 6, 7, 8]], 64, 128)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    page_size = draw(st.sampled_from([1, 2, 6, 8, 16]))
    width = draw(st.integers(0, 6))
    line = st.lists(st.integers(-1, 40), min_size=width, max_size=width)
    return draw(st.lists(line, min_size=1, max_size=5)), page_size


@settings(max_examples=60)
@given(table=tables(), size=st.sampled_from([1, 7, 8, 16]), data=st.data())
def test_window_slots_equal_the_oracle(table: tuple[list[list[int]], int], size: int, data: st.DataObject) -> None:
    pages, page_size = table
    rows = []
    for _ in range(data.draw(st.integers(0, 12))):
        position = data.draw(st.integers(0, 60))
        floor = data.draw(st.sampled_from([0, position]) | st.integers(0, position))
        row = (position, floor, data.draw(st.integers(-1, len(pages) - 1)))
        rows.append(row if row[2] >= 0 else (-1, 0, -1))
    check_window(rows, pages, page_size, size)


@settings(max_examples=60)
@given(table=tables(), width=st.integers(0, 9), data=st.data())
def test_entry_slots_equal_the_oracle(table: tuple[list[list[int]], int], width: int, data: st.DataObject) -> None:
    pages, page_size = table
    requests = data.draw(st.lists(st.integers(-1, len(pages) - 1), max_size=6))
    entry = st.just(-1) | st.integers(0, 60)
    entries = [data.draw(st.lists(entry, min_size=width, max_size=width)) for _ in requests]
    check_entries(entries, requests, pages, page_size)


def test_entries_at_the_released_width() -> None:
    pages = [[5, -1, 2, 11], [0, 1, 3, 4]]
    entries = [list(range(512)), list(range(-1, 511)), [-1] * 512, [255, 256] * 256]
    check_entries(entries, [0, 1, 0, -1], pages, 128)


@OPERATIONS
def test_a_batch_without_requests_is_padding(operation: ModuleType) -> None:
    nobody, table = ints([-1, -1]), torch.zeros(0, 4, dtype=torch.int32)
    actual = operation.window_slots(nobody, ints([0, 0]), nobody, table, page_size=8, window=8)
    assert actual.slots.eq(-1).all()
    assert actual.counts.tolist() == [0, 0]
    entries = ints([3, -1]).view(2, 1)
    assert operation.entry_slots(entries, nobody, table, page_size=8).tolist() == [[-1], [-1]]


@OPERATIONS
def test_rows_of_the_table_and_of_entries_may_lie_apart(operation: ModuleType) -> None:
    pages = [[3, 1, 4], [5, 9, 2]]
    table = torch.full((2, 9), 77, dtype=torch.int32)
    table[:, 2:5] = torch.tensor(pages)
    entries = torch.full((2, 5), 77, dtype=torch.int32)
    entries[:, :3] = torch.tensor([[0, 9, 23], [8, 16, -1]])
    actual = operation.entry_slots(entries[:, :3], ints([1, 0]), table[:, 2:5], page_size=8)
    assert actual.tolist() == [[40, 73, 23], [8, 32, -1]]
    slots = operation.window_slots(ints([17]), ints([15]), ints([1]), table[:, 2:5], page_size=8, window=4)
    assert slots.slots.tolist() == [[79, 16, 17, -1]]
    assert slots.counts.tolist() == [3]


@OPERATIONS
def test_offsets_into_a_table_are_64_bit(operation: ModuleType) -> None:
    # A stride that fits 32 bits, a row number that takes the offset past them; memory never touched is never taken.
    stride = 2**30
    table = torch.empty(2 * stride + 2, dtype=torch.int32).as_strided((3, 2), (stride, 1))
    table[2] = torch.tensor([4, 6])
    actual = operation.window_slots(ints([9]), ints([7]), ints([2]), table, page_size=8, window=4)
    assert actual.slots.tolist() == [[39, 48, 49, -1]]
    assert operation.entry_slots(ints([15]).view(1, 1), ints([2]), table, page_size=8).tolist() == [[55]]


def test_refuses_what_is_not_dense() -> None:
    table, entries = torch.zeros(4, 4, dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="table has strides"):
        launch.window_slots(ints([0]), ints([0]), ints([0]), table.t(), page_size=8, window=8)
    with pytest.raises(ValueError, match="table has strides"):
        launch.entry_slots(entries, ints([0, 0]), table.t(), page_size=8)
    with pytest.raises(ValueError, match="entries has strides"):
        launch.entry_slots(entries.t(), ints([0, 0]), table, page_size=8)


@pytest.mark.parametrize("architecture", Architecture)
@pytest.mark.parametrize("width", [0, 1, 7, 128, 512, 513, 4096])
def test_programs_cover_rows(architecture: Architecture, width: int) -> None:
    tile = TILES[architecture]
    rows, columns = tile.shape(width)
    assert rows * columns == tile.slots
    assert columns >= min(width, tile.columns)

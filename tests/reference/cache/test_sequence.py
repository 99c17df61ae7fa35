from __future__ import annotations

import pytest
import torch

from epd_workers.reference.cache.paged_pool import KvPool, OutOfPages
from epd_workers.reference.cache.sequence import Sequence
from tests.support.reference.rows import DIM, PAIRS, WINDOW, geometry


def test_tables_follow_the_pages() -> None:
    sequence = Sequence(KvPool(geometry(), 9, 9))
    assert sequence.page_table.tolist() == sequence.window_table.tolist() == []
    sequence.reserve(12)
    assert sequence.page_table.tolist() == sequence.window_table.tolist() == [0, 1, 2]
    sequence.release_windows(4)
    assert sequence.window_table.tolist() == [-1, 1, 2]
    sequence.reserve_windows(0)
    assert sequence.window_table.tolist() == [0, 1, 2]
    assert sequence.replace_page(1, 7) == 1
    assert sequence.page_table.tolist() == [0, 7, 2]
    assert sequence.page_table.dtype == sequence.window_table.dtype == torch.int32


@pytest.mark.parametrize(("pages", "window_pages", "kind"), [(3, 9, "global"), (9, 3, "window")])
def test_a_failed_reservation_changes_nothing(pages: int, window_pages: int, kind: str) -> None:
    pool = KvPool(geometry(), pages, window_pages)
    sequence = Sequence(pool)
    sequence.reserve(5)
    with pytest.raises(OutOfPages, match=f"2 {kind} pages are needed and 1 of 3 are free"):
        sequence.reserve(16)
    assert (len(sequence.pages), len(sequence.window_pages)) == (2, 2)
    assert (pool.pages.free_count, pool.window_pages.free_count) == (pages - 2, window_pages - 2)


def test_reserving_less_than_there_is_takes_nothing() -> None:
    sequence = Sequence(KvPool(geometry(), 4, 4))
    for tokens in (0, 5, 5, 8, 3):
        sequence.reserve(tokens)
    assert (sequence.capacity, sequence.pages) == (8, [0, 1])


def test_a_transfer_needs_the_last_windows_alone() -> None:
    pool = KvPool(geometry(), 8, 2)
    sequence = Sequence(pool)
    sequence.reserve(19, windows_from=13)
    assert sequence.window_pages == [-1, -1, -1, 0, 1]
    sequence.advance(19)
    sequence.release_windows(16)
    assert sequence.window_pages == [-1, -1, -1, -1, 1]
    sequence.release()
    assert (pool.pages.free_count, pool.window_pages.free_count) == (8, 2)


def test_windows_behind_the_reach_of_later_rows_are_released() -> None:
    pool = KvPool(geometry(), 10, 10)
    sequence = Sequence(pool)
    for length in range(1, 40):
        sequence.reserve(length)
        sequence.advance(1)
        sequence.release_windows(length - WINDOW)
        assert all(sequence.window_pages[position // 4] >= 0 for position in range(max(0, length - WINDOW), length))
        held = pool.window_pages.count - pool.window_pages.free_count
        assert held <= pool.geometry.window_pages_per_request(1)
    assert set(sequence.window_pages[:7]) == {-1}


def test_windows_that_are_gone_can_be_had_anew() -> None:
    pool = KvPool(geometry(), 4, 4)
    sequence = Sequence(pool)
    sequence.reserve(16)
    sequence.advance(16)
    sequence.release_windows(16)
    assert pool.window_pages.free_count == 4
    sequence.reserve_windows(9)
    assert sequence.window_pages == [-1, -1, 0, 1]
    sequence.reserve_windows(5)
    assert sequence.window_pages == [-1, 2, 0, 1]
    sequence.release_windows(12)
    assert sequence.window_pages == [-1, -1, -1, 1]
    pool.allocate_windows(3)
    with pytest.raises(OutOfPages):
        sequence.reserve_windows(0)
    assert sequence.window_pages == [-1, -1, -1, 1]


@pytest.mark.parametrize("tokens", [-1, 5])
def test_only_reserved_tokens_are_counted(tokens: int) -> None:
    sequence = Sequence(KvPool(geometry(), 1, 1))
    sequence.reserve(4)
    with pytest.raises(ValueError, match=f"{tokens} tokens cannot follow 0: the pages hold 4"):
        sequence.advance(tokens)
    sequence.advance(4)
    assert sequence.length == 4


def test_release_leaves_an_empty_sequence() -> None:
    pool = KvPool(geometry(), 3, 3)
    sequence = Sequence(pool)
    sequence.reserve(12)
    sequence.advance(11)
    sequence.pending[PAIRS] = (torch.ones(DIM), torch.ones(DIM))
    sequence.history = object()
    for _ in range(2):
        sequence.release()
        assert (sequence.length, sequence.pages, sequence.window_pages) == (0, [], [])
        assert (sequence.pending, sequence.history) == ({PAIRS: None}, None)
        assert (pool.pages.free_count, pool.window_pages.free_count) == (3, 3)

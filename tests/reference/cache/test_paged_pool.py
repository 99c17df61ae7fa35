from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from epd_kernels.formats.reference import pack, unpack
from epd_workers.reference.cache.geometry import CacheType, Geometry
from epd_workers.reference.cache.paged_pool import KvPool, OutOfPages, PageAllocator
from epd_workers.reference.model.config import RELEASED
from tests.support.reference.rows import DIM, LAYERS, PAIRS, SINGLES, geometry


def test_the_lowest_free_page_comes_first() -> None:
    pages = PageAllocator("global", 6)
    assert pages.allocate(4) == [0, 1, 2, 3]
    for page in (2, 0):
        pages.free(page)
    assert pages.free_count == 4
    assert pages.allocate(3) == [0, 2, 4]


def test_a_page_is_freed_once() -> None:
    pages = PageAllocator("window", 2)
    pages.allocate(1)
    pages.free(0)
    for page in (0, 1, -1, 7):
        with pytest.raises(ValueError, match=f"window page {page} is not in use"):
            pages.free(page)


def test_more_than_there_is_takes_nothing() -> None:
    pages = PageAllocator("global", 3)
    pages.allocate(2)
    with pytest.raises(OutOfPages, match="2 global pages are needed and 1 of 3 are free"):
        pages.allocate(2)
    assert pages.free_count == 1


@given(st.lists(st.integers(0, 11), min_size=1, max_size=30), st.sampled_from(["fp4", "bf16"]))
def test_rows_are_read_where_they_were_written(slots: list[int], cache_type: CacheType) -> None:
    sizes = geometry(4, cache_type)
    pool = KvPool(sizes, 3, 3)
    values = torch.randn(len(slots), DIM, generator=torch.Generator().manual_seed(1))
    last = {slot: row for row, slot in enumerate(slots)}
    codecs = ("main", sizes.main_codec), ("index", sizes.index_codec), ("window", sizes.window_codec)
    for name, codec in codecs:
        rows = getattr(pool, name)(SINGLES)
        for slot, row in last.items():
            pack(values[row : row + 1], rows, torch.tensor([slot]))
        expected = torch.zeros(12, DIM, dtype=torch.float64)
        expected[list(last)] = codec.unpack(codec.pack(values), DIM, torch.float64)[list(last.values())]
        assert torch.equal(unpack(rows, torch.arange(12).view(3, 4), torch.float64), expected.view(3, 4, DIM))


def test_layers_share_a_window_page_and_no_row() -> None:
    pool = KvPool(geometry(), 1, 2)
    slots = torch.arange(8)
    for layer in range(LAYERS):
        pack((10 * layer + slots[:, None]).expand(8, DIM).double(), pool.window(layer), slots)
    for layer in range(LAYERS):
        rows = unpack(pool.window(layer), slots, torch.float64)
        assert rows[:, 0].tolist() == [10 * layer + slot for slot in range(8)]
    assert pool.window_page(1).shape == (LAYERS, 4, pool.geometry.window_bytes)
    assert pool.window_page(0).numel() == pool.geometry.window_page_bytes


def test_a_window_page_comes_back_blank() -> None:
    pool = KvPool(geometry(), 1, 2)
    (page,) = pool.allocate_windows(1)
    pack(torch.ones(4, DIM), pool.window(0), torch.arange(4))
    pool.window_pages.free(page)
    assert pool.allocate_windows(1) == [page]
    assert not pool.window_page(page).any()


def test_owners_have_their_own_entries_in_a_page() -> None:
    pool = KvPool(geometry(), 3, 1)
    assert pool.main_page(SINGLES, 2).shape == (4, pool.geometry.main_bytes)
    assert pool.index_page(PAIRS, 2).shape == (2, pool.geometry.index_bytes)
    pack(torch.ones(1, DIM), pool.main(PAIRS), torch.tensor([5]))
    assert pool.main_page(PAIRS, 2)[1].any()
    assert not any(pool.main_page(PAIRS, page).any() for page in (0, 1))
    assert not any(pool.index_page(PAIRS, page).any() for page in range(3))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_an_idle_pool_takes_no_memory() -> None:
    before = resident()
    pool = KvPool(Geometry.of(RELEASED, 256), 4096, 64)
    assert pool.pages.count * pool.geometry.page_bytes > 800 << 20
    assert resident() - before < 64 << 20

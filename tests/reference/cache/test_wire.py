from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from epd_workers.reference.cache import wire
from epd_workers.reference.cache.geometry import Geometry
from epd_workers.reference.cache.paged_pool import KvPool
from epd_workers.reference.cache.prefix import PrefixTree
from epd_workers.reference.cache.sequence import Sequence
from epd_workers.reference.model.config import RELEASED
from epd_workers.reference.model.interface import LayoutMismatch
from tests.support.reference.rows import (
    DIM,
    LAYERS,
    PAIRS,
    SINGLES,
    WINDOW,
    check_entries,
    check_windows,
    geometry,
    write_rows,
)


def prefilled(pool: KvPool, length: int) -> Sequence:
    """A sequence over pages that others used before."""
    dirty = torch.randint(0, 256, (pool.pages.count * 2, 1), dtype=torch.uint8)
    for page in range(pool.pages.count):
        for layer in (PAIRS, SINGLES):
            pool.main_page(layer, page).copy_(dirty[page])
            pool.index_page(layer, page).copy_(dirty[-page])
    sequence = Sequence(pool)
    sequence.reserve(length)
    write_rows(sequence, range(length), 0, length)
    sequence.advance(length)
    if length % 2:
        sequence.pending[PAIRS] = (torch.arange(DIM) / 7, torch.arange(DIM) / 11)
    sequence.release_windows(length - WINDOW)
    return sequence


def send(source: Sequence, target: Sequence) -> None:
    sizes, length = source.pool.geometry, source.length
    windows = wire.window_range(length, target.length, sizes.page_size, sizes.window)
    first = target.borrowed
    target.reserve(length, windows_from=windows.start * sizes.page_size)
    target.advance(length - target.length)
    for index in range(first, -(-length // sizes.page_size)):
        wire.write_page(target, index, wire.read_page(source, index))
    for index in windows:
        wire.write_window_page(target, index, wire.read_window_page(source, index))
    wire.write_state(target, wire.read_state(source))


@given(st.integers(1, 128).map(lambda half: 2 * half), st.integers(1, 300))
def test_what_is_sent_is_what_decode_reads(page_size: int, length: int) -> None:
    sizes = geometry(page_size)
    count = -(-length // page_size) + 1
    source, target = prefilled(KvPool(sizes, count, count), length), Sequence(KvPool(sizes, count, count))
    target.pool.pages.allocate(1)  # so that the pages have other numbers here
    send(source, target)
    assert target.length == length
    check_entries(target.pool, range(length), target.pages, length)
    check_windows(target.pool, range(length), target.window_pages, max(0, length - WINDOW), length)
    pair, sent = target.pending[PAIRS], source.pending[PAIRS]
    assert (pair is not None) == (sent is not None) == bool(length % 2)
    if pair and sent:
        assert all(torch.equal(a, b) for a, b in zip(pair, sent, strict=True))


@given(st.sampled_from([2, 4, 6, 16]), st.integers(1, 40), st.integers(1, LAYERS))
def test_a_window_alone_arrives_where_it_stood(page_size: int, end: int, layers: int) -> None:
    pool = KvPool(geometry(page_size), 40, 40)
    source, target = prefilled(pool, end), Sequence(pool)
    start = max(0, end - WINDOW)
    target.reserve(end, windows_from=start)
    target.advance(end)
    data = wire.read_window(source, end, layers)
    assert len(data) == layers * min(WINDOW, end) * pool.geometry.window_bytes
    wire.write_window(target, end, layers, data)
    assert wire.read_window(target, end, layers) == data
    whole = torch.frombuffer(bytearray(wire.read_window(target, end, LAYERS)), dtype=torch.uint8).view(LAYERS, -1)
    assert not whole[layers:].any()
    if layers == LAYERS:
        check_windows(pool, range(end), target.window_pages, start, end)


def test_a_window_that_is_not_whole_is_refused() -> None:
    source = prefilled(KvPool(geometry(4), 40, 40), 21)
    with pytest.raises(LayoutMismatch, match="window before 20 has 3 bytes"):
        wire.write_window(source, 20, 2, b"abc")
    with pytest.raises(IndexError, match="released or never reserved"):
        wire.read_window(source, 12, 2)


@given(st.integers(1, 40), st.integers(0, 9))
def test_a_decode_with_a_prefix_gets_the_rest(length: int, cached: int) -> None:
    sizes = geometry()
    cached = min(cached, (length - 1) // 4)
    source, pool = prefilled(KvPool(sizes, 11, 11), length), KvPool(sizes, 22, 22)
    tree, target = PrefixTree(pool), Sequence(pool)
    earlier = prefilled(pool, 4 * cached)
    tree.insert(range(length), earlier)
    earlier.release()
    match = tree.match(range(length))
    tree.acquire(target, match, tree.usable(match))
    prefix = target.length
    send(source, target)
    assert prefix == 4 * cached
    check_entries(pool, range(length), target.pages, length)
    check_windows(pool, range(length), target.window_pages, max(0, length - WINDOW), length)


def test_entries_of_tokens_that_are_not_there_are_zero() -> None:
    sequence = prefilled(KvPool(geometry(8), 2, 2), 11)
    write_rows(sequence, range(16), 11, 16)  # guesses of a draft that were not taken
    sizes = sequence.pool.geometry
    page = np.frombuffer(wire.read_page(sequence, 1), dtype=np.uint8)
    singles, pairs = (
        page[: 8 * (sizes.main_bytes + sizes.index_bytes)],
        page[8 * (sizes.main_bytes + sizes.index_bytes) :],
    )
    main, index = singles[: 8 * sizes.main_bytes].reshape(8, -1), singles[8 * sizes.main_bytes :].reshape(8, -1)
    assert main[:3].any(1).all()
    assert index[:3].any(1).all()
    assert not main[3:].any()
    assert not index[3:].any()
    assert pairs[: sizes.main_bytes].any()
    assert not pairs[sizes.main_bytes : 4 * sizes.main_bytes].any()
    window = np.frombuffer(wire.read_window_page(sequence, 1), dtype=np.uint8).reshape(LAYERS, 8, -1)
    assert window[:, :3].any(2).all()
    assert not window[:, 3:].any()


@pytest.mark.parametrize(
    ("length", "prefix", "expected"),
    [
        (1, 0, range(1)),
        (128, 0, range(2)),
        (129, 0, range(3)),
        (1000, 0, range(13, 16)),
        (1024, 0, range(14, 16)),
        (1000, 960, range(15, 16)),
        (1000, 64, range(13, 16)),
        (1024, 1024, range(16, 16)),
    ],
)
def test_windows_are_sent_from_the_page_that_the_next_row_reaches(length: int, prefix: int, expected: range) -> None:
    assert wire.window_range(length, prefix, 64, 128) == expected


def test_released_sizes_on_the_wire() -> None:
    sequence = Sequence(KvPool(Geometry.of(RELEASED, 256), 2, 2))
    sequence.reserve(257)
    sequence.advance(257)
    for owner in sequence.pool.geometry.paired_owners:
        sequence.pending[owner.layer] = (torch.zeros(512), torch.ones(512))
    assert len(wire.read_page(sequence, 1)) == 890 * 256
    assert len(wire.read_window_page(sequence, 0)) == 40 * 256 * 528
    assert len(wire.read_state(sequence)) == 12_288


def test_other_sizes_are_refused() -> None:
    sequence = prefilled(KvPool(geometry(), 2, 2), 5)
    sizes = sequence.pool.geometry
    for write, size in (
        (wire.write_page, sizes.page_bytes),
        (wire.write_window_page, sizes.window_page_bytes),
    ):
        for length in (0, size - 1, size + 1):
            with pytest.raises(LayoutMismatch, match=f"has {length} bytes: .* have {size}"):
                write(sequence, 0, bytes(length))
    with pytest.raises(LayoutMismatch, match="state of 5 tokens has 3 bytes: this model's has 256"):
        wire.write_state(sequence, bytes(3))
    sequence.reserve(6)
    sequence.advance(1)
    with pytest.raises(LayoutMismatch, match="state of 6 tokens has 256 bytes: this model's has 0"):
        wire.write_state(sequence, bytes(256))


def test_pages_that_hold_nothing_are_refused() -> None:
    sequence = prefilled(KvPool(geometry(), 4, 4), 13)
    for call in (wire.read_page, wire.read_window_page):
        for index in (-1, 4):
            with pytest.raises(IndexError, match=f"page {index} holds no token: the sequence has 13"):
                call(sequence, index)
    with pytest.raises(IndexError, match="page 0 has no window page"):
        wire.read_window_page(sequence, 0)


def test_a_page_of_the_tree_is_not_written() -> None:
    sequence = prefilled(KvPool(geometry(), 4, 4), 8)
    sizes = sequence.pool.geometry
    PrefixTree(sequence.pool).insert(range(8), sequence)
    with pytest.raises(ValueError, match="page 0 is shared with other requests: the first 2 are not written"):
        wire.write_page(sequence, 0, bytes(sizes.page_bytes))
    with pytest.raises(ValueError, match="window page 1 is shared"):
        wire.write_window_page(sequence, 1, bytes(sizes.window_page_bytes))


def test_an_odd_length_needs_its_pair() -> None:
    sequence = Sequence(KvPool(geometry(), 1, 1))
    sequence.reserve(3)
    sequence.advance(3)
    with pytest.raises(ValueError, match=r"the sequence has 3 tokens: layers \[1\] must have a pending pair"):
        wire.read_state(sequence)


def test_an_even_length_forgets_the_pair() -> None:
    sequence = prefilled(KvPool(geometry(), 2, 2), 5)
    sequence.advance(1)
    wire.write_state(sequence, b"")
    assert sequence.pending == {PAIRS: None}

"""Pools, tables and sources reach beyond 2^31 bytes: offsets must be 64 bits wide.

The memory is address space alone: pages that nobody has touched take none. Everything stands in its middle, so that an
offset that has wrapped around to a negative one finds zeros instead of ending the process.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl

from epd_kernels.attention import launch as attention
from epd_kernels.attention import reference as attention_reference
from epd_kernels.formats import launch as formats
from epd_kernels.formats import reference as formats_reference
from epd_kernels.formats.reference import INDEX, MAIN, WINDOW, Codec
from epd_kernels.index_scores import launch as index_scores
from epd_kernels.index_scores import reference as index_scores_reference
from epd_kernels.launching import Launch
from epd_kernels.paged import Paged
from epd_kernels.row_gather import launch as row_gather
from epd_kernels.window_slots import launch as window_slots
from epd_kernels.window_slots import reference as window_slots_reference
from epd_kernels.window_slots.reference import Slots

if TYPE_CHECKING:
    from torch import Tensor

PAGES = 3
STRIDE = 5 << 28
"""Elements from page to page: page 1 is within 2^31, page 2 beyond."""
PAGE_SIZE = 8
NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, for which the mmap module has no name."""
LAYOUTS = pytest.mark.parametrize("planar", [False, True], ids=["by row", "planar"])


def spread(pages: int, size: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """[pages, size] zeros whose rows lie STRIDE elements apart, with room before them for wrapped offsets."""
    elements = (2 * pages - 1) * STRIDE
    # Without a reservation a machine with less memory than this gives it, too.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    room = torch.frombuffer(mmap.mmap(-1, elements * dtype.itemsize, flags=flags), dtype=dtype)
    return room.as_strided((pages, size), (STRIDE, 1), (pages - 1) * STRIDE)


def pools(codec: Codec, dim: int, *, planar: bool) -> tuple[Paged, Paged]:
    """A pool whose pages lie far apart and a dense one, with the same rows."""
    size = PAGE_SIZE * codec.width(dim)
    far = Paged(spread(PAGES, size), PAGE_SIZE, dim, codec, planar)
    near = Paged(torch.zeros(PAGES, size, dtype=torch.uint8), PAGE_SIZE, dim, codec, planar)
    values = torch.randn(near.slots, dim, generator=torch.Generator().manual_seed(1))
    formats_reference.pack(values, near, torch.arange(near.slots))
    far.data.copy_(near.data)
    return far, near


@triton.jit  # type: ignore[untyped-decorator]
def first_elements(source: Any, target: Any, stride: Any, wide: tl.constexpr) -> None:
    """Copies the first element of every page, with offsets of 32 or 64 bits."""
    page = tl.program_id(0)
    if wide:
        page = page.to(tl.int64)
    tl.store(target + tl.program_id(0), tl.load(source + page * stride))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32], ids=["bytes", "words"])
@pytest.mark.parametrize(("wide", "expected"), [(True, [1, 2, 3]), (False, [1, 2, 0])], ids=["int64", "int32"])
def test_narrow_offsets_would_be_noticed(wide: bool, expected: list[int], dtype: torch.dtype) -> None:
    source, target = spread(PAGES, 16, dtype), torch.zeros(PAGES, dtype=dtype)
    source[:, 0] = torch.tensor([1, 2, 3])
    Launch(first_elements, (PAGES,), (source, target, source.stride(0)), {"wide": wide}, ("target",)).run()
    assert target.tolist() == expected


@LAYOUTS
@pytest.mark.parametrize("codec", [WINDOW, MAIN, INDEX], ids=lambda codec: codec.name)
def test_pack_and_unpack(codec: Codec, planar: bool) -> None:
    far, near = pools(codec, 32, planar=planar)
    slots = torch.tensor([23, 0, 17, -1, 8, 16], dtype=torch.int32)
    assert torch.equal(formats.unpack(far, slots, torch.float32), formats_reference.unpack(near, slots, torch.float32))
    values = torch.randn(len(slots), 32, generator=torch.Generator().manual_seed(2))
    formats.pack(values, far, slots)
    formats_reference.pack(values, near, slots)
    assert torch.equal(far.data, near.data)


@LAYOUTS
def test_attention(planar: bool) -> None:
    window_far, window = pools(WINDOW, 32, planar=planar)
    entries_far, entries = pools(MAIN, 32, planar=planar)
    generator = torch.Generator().manual_seed(3)
    query, sink = torch.randn(2, 4, 32, generator=generator), torch.randn(4, generator=generator)
    slots = Slots(torch.tensor([[1, 9, 17, 20], [22, 23, -1, -1]]).int(), torch.tensor([4, 2]).int())
    selected = torch.tensor([[2, 18, -1], [16, 21, 23]]).int()
    ours = attention.attend(query, window_far, slots, entries_far, selected, sink, scale=0.3)
    theirs = attention_reference.attend(query, window, slots, entries, selected, sink, scale=0.3)
    torch.testing.assert_close(ours.output, theirs.output, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.lse, theirs.lse, rtol=1e-5, atol=1e-5)


@LAYOUTS
@pytest.mark.parametrize("restricted", [False, True], ids=["all", "candidates"])
def test_index_scores(planar: bool, restricted: bool) -> None:
    far, near = pools(INDEX, 32, planar=planar)
    generator = torch.Generator().manual_seed(4)
    query = INDEX.pack(torch.randn(2, 4, 32, generator=generator))
    weights = torch.rand(2, 4, generator=generator)
    table = torch.tensor([[2, 0, 1], [1, 2, -1]]).int()
    where = (table, torch.tensor([0, 1]).int(), torch.tensor([24, 13]).int())
    candidates = torch.tensor([[0, 2, 5], [1, 3, -1]]).int() if restricted else None
    ours = index_scores.index_scores(query, weights, far, *where, columns=24, block=4, candidates=candidates)
    theirs = index_scores_reference.index_scores(
        query, weights, near, *where, columns=24, block=4, candidates=candidates
    )
    torch.testing.assert_close(ours.values, theirs.values, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.maxima, theirs.maxima, rtol=1e-5, atol=1e-5)


def test_gathered_rows() -> None:
    source = spread(PAGES, 8, torch.int32)
    source.copy_(torch.arange(24).view(3, 8))
    (actual,) = row_gather.gather_rows([source], torch.tensor([2, -1, 0, 1]))
    assert torch.equal(actual, torch.cat((source[2:], torch.zeros(1, 8), source[:2])).int())


def test_page_tables() -> None:
    table = spread(PAGES, 4, torch.int32)
    table.copy_(torch.arange(12).view(3, 4).flip(0))
    positions, floors = torch.tensor([9, 13, 30]).int(), torch.tensor([0, 6, 0]).int()
    where = (positions, floors, torch.tensor([2, 1, 0]).int())
    actual = window_slots.window_slots(*where, table, page_size=PAGE_SIZE, window=8)
    wanted = window_slots_reference.window_slots(*where, table.contiguous(), page_size=PAGE_SIZE, window=8)
    assert torch.equal(actual.slots, wanted.slots)
    assert torch.equal(actual.counts, wanted.counts)
    entries = torch.tensor([[0, 9], [31, -1], [5, 16]]).int()
    slots = window_slots.entry_slots(entries, where[2], table, page_size=PAGE_SIZE)
    assert torch.equal(
        slots, window_slots_reference.entry_slots(entries, where[2], table.contiguous(), page_size=PAGE_SIZE)
    )

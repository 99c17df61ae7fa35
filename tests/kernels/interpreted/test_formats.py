"""Rows to and from the bytes of pools: every code, every scale, both layouts, whatever lies between the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from epd_kernels.architecture import Architecture
from epd_kernels.formats import launch, reference
from epd_kernels.formats.reference import BFLOAT16, INDEX, MAIN, WINDOW, Codec
from epd_kernels.formats.tiles import TILES
from epd_kernels.paged import Paged
from tests.kernels.values import finite_bfloat16
from tests.support.reference.fractional import E2M1, E4M3, bits, decode_row, encode_row, vector_nearest

if TYPE_CHECKING:
    from types import ModuleType

SCALED = [WINDOW, MAIN, INDEX]
by_codec = pytest.mark.parametrize("codec", SCALED, ids=lambda codec: codec.name)
by_operation = pytest.mark.parametrize("operation", [reference, launch], ids=["torch", "triton"])
by_layout = pytest.mark.parametrize("planar", [True, False], ids=["planar", "by row"])

_GUARD = 0xA5


def pool_of(codec: Codec, dim: int, pages: int, page_size: int, *, planar: bool, layers: int = 1) -> Paged:
    """A pool whose pages lie among those of other layers, with bytes behind each; all bytes are guards."""
    size = page_size * codec.width(dim) + 5
    whole = torch.full((pages, layers, size), _GUARD, dtype=torch.uint8)
    return Paged(whole[:, layers // 2], page_size, dim, codec, planar)


def whole_of(pool: Paged) -> Tensor:
    """All bytes that the pool's lie in."""
    return pool.data.as_strided((pool.data.untyped_storage().nbytes(),), (1,), 0)


def row_bytes(pool: Paged, slot: int) -> list[int]:
    """A row's bytes by the layouts' definition: planar, all codes of a page and then all scales; or row by row."""
    page, place = divmod(slot, pool.page_size)
    line, width = pool.data[page].tolist(), pool.codec.width(pool.dim)
    if not pool.planar:
        return [*line[place * width : (place + 1) * width]]
    codes = pool.dim * pool.codec.code_bits // 8
    scales, behind = width - codes, pool.page_size * codes
    return line[place * codes : (place + 1) * codes] + line[behind + place * scales : behind + (place + 1) * scales]


def blocks_under(codec: Codec, tops: Tensor) -> Tensor:
    """Blocks [n, block] that begin with one of `tops` and go on with every bfloat16 value that is not above it."""
    values, made = finite_bfloat16(), []
    for top in tops.tolist():
        fitting = values[values.abs() <= top]
        padded = torch.cat((fitting, fitting.new_zeros(-len(fitting) % (codec.block - 1))))
        rows = padded.view(-1, codec.block - 1)
        made.append(torch.cat((rows.new_full((len(rows), 1), top), rows), 1))
    return torch.cat(made)


def expected(codec: Codec, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes and values of blocks of bfloat16 values, by tables in float64, which tells their quotients from ties."""
    x = blocks.double()
    amax = x.abs().amax(1, keepdim=True)
    if codec is MAIN:
        byte = vector_nearest(amax.clamp(min=6 * 2.0**-9) / 6, E4M3)
        scale = torch.tensor([float(value) for value in E4M3], dtype=torch.float64)[byte]
    else:
        powers = torch.tensor([2.0 ** (code - 127) for code in range(255)], dtype=torch.float64)
        least, top = (1e-4, 448) if codec is WINDOW else (6 * 2.0**-126, 6)
        byte = torch.searchsorted(powers, amax.clamp(min=least) / top)  # the first that is not less
        scale = powers[byte]
    table, sign = (E4M3, 0x80) if codec is WINDOW else (E2M1, 8)
    magnitude = vector_nearest(x / scale, table)
    code = magnitude + sign * x.signbit()
    if codec is not WINDOW:
        code = code[:, 0::2] + 16 * code[:, 1::2]
    values = torch.tensor([float(value) for value in table], dtype=torch.float64)[magnitude] * scale
    return torch.cat((code, byte), 1).to(torch.uint8), values.copysign(x).float()


def through_kernels(codec: Codec, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Packed rows, and what they unpack to; a block a row."""
    pool = Paged(torch.zeros(len(blocks), codec.width(codec.block), dtype=torch.uint8), 1, codec.block, codec)
    slots = torch.arange(len(blocks), dtype=torch.int32)
    launch.pack(blocks, pool, slots)
    return pool.data, launch.unpack(pool, slots, torch.float32)


def check_blocks(codec: Codec, blocks: Tensor, loose: Tensor | None = None) -> Tensor:
    """Compare with the tables and the codec; all but `loose` blocks come out of a second packing as of the first."""
    packed, unpacked = through_kernels(codec, blocks)
    code, values = expected(codec, blocks)
    assert torch.equal(packed, code)
    assert torch.equal(packed, codec.pack(blocks))
    assert torch.equal(bits(unpacked), bits(values))
    fixed = torch.ones(len(blocks), dtype=torch.bool) if loose is None else ~loose
    again, same = through_kernels(codec, unpacked[fixed])
    # A block may come out a binade smaller than it went in; its values are then as exact under the smaller scale.
    assert torch.equal(bits(same), bits(unpacked[fixed]))
    assert codec is not MAIN or torch.equal(again, packed[fixed])
    return packed


def powers_that_occur(codec: Codec) -> list[int]:
    """Exponents of the scales of float32 values below 2^127."""
    return list(range(-22, 119 + 1)) if codec is WINDOW else list(range(-126, 124 + 1))


def test_main_format_of_every_bfloat16_value_under_every_scale() -> None:
    scales = torch.tensor([float(scale) for scale in E4M3[1:]])
    assert (len(finite_bfloat16()), len(scales)) == (65280, 126)
    packed = check_blocks(MAIN, blocks_under(MAIN, 6 * scales))
    assert packed[:, 8].unique().tolist() == list(range(1, 127))


@pytest.mark.parametrize("codec", [WINDOW, INDEX], ids=lambda codec: codec.name)
@pytest.mark.parametrize(
    "step", [pytest.param(24, id="some scales"), pytest.param(1, id="every scale", marks=pytest.mark.nightly)]
)
def test_every_bfloat16_value_under_powers_of_two(codec: Codec, step: int) -> None:
    powers = powers_that_occur(codec)
    chosen = sorted({*powers[::step], powers[-1]})
    top = 448.0 if codec is WINDOW else 6.0
    for some in torch.tensor([top * 2.0**power for power in chosen]).split(16):
        packed = check_blocks(codec, blocks_under(codec, some))
        assert {power + 127 for power in chosen} >= set(packed[:, -1].tolist())
    assert packed[-1, -1] == powers[-1] + 127


@by_codec
def test_every_bfloat16_value_as_the_largest_of_its_block(codec: Codec) -> None:
    """Its scale, the clamps and their edges, zero blocks of either sign, saturation."""
    tops = finite_bfloat16()
    tops = tops[tops.abs() < 2.0**126]
    shares = torch.linspace(-1, 1, codec.block - 1)
    blocks = torch.cat((tops[:, None], (tops[:, None] * shares).bfloat16().float()), 1)
    loose = (tops.abs() >= 9 * 2.0**-9) & (tops.abs() <= 10 * 2.0**-9) if codec is MAIN else None
    check_blocks(codec, blocks, loose)


def test_packing_again_is_not_always_the_same() -> None:
    """The known exception: the largest code is 4, and half the scale would do."""
    block = torch.zeros(1, 16)
    block[0, 0] = 9.5 * 2.0**-9
    packed, unpacked = through_kernels(MAIN, block)
    again, _ = through_kernels(MAIN, unpacked)
    assert [packed[0, 8].item(), again[0, 8].item()] == [2, 1]


@by_codec
def test_float32_values_beside_ties_and_of_any_size(codec: Codec) -> None:
    """As the codec packs them, and a few against exact fractions."""
    pick = torch.Generator().manual_seed(11)
    points = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 2.0**-10, 3 * 2.0**-10, 0.0, 447.0])
    which = torch.randint(len(points), (4096, codec.block), generator=pick)
    side = torch.randint(-1, 2, which.shape, generator=pick)
    sign = torch.randint(0, 2, which.shape, generator=pick) * 2 - 1
    x = points[which]
    x = torch.where(side == 0, x, x.nextafter(side * torch.inf)) * sign
    x *= torch.exp2(torch.randint(-30, 30, (4096, 1), generator=pick).float())
    x[::2] *= torch.rand(2048, 1, generator=pick)
    packed, unpacked = through_kernels(codec, x)
    assert torch.equal(packed, codec.pack(x))
    assert torch.equal(bits(unpacked), bits(codec.round(x)))
    assert packed[:64].tolist() == [encode_row(codec, row) for row in x[:64].tolist()]


@by_codec
@by_operation
def test_every_code_under_every_scale_unpacks(codec: Codec, operation: ModuleType) -> None:
    """Of scales under which every value is finite."""
    codes = torch.tensor([code for code in range(256) if codec is not WINDOW or code & 0x7F != 0x7F])
    codes = torch.cat((codes, codes.new_zeros(-len(codes) % 32))).to(torch.uint8)
    scales = {WINDOW: range(246), MAIN: range(127), INDEX: range(253)}[codec]
    dim = len(codes) * 8 // codec.code_bits
    rows = torch.stack([torch.cat((codes, codes.new_full((dim // codec.block,), scale))) for scale in scales])
    pool = Paged(rows, 1, dim, codec)
    slots = torch.arange(len(rows))
    actual = operation.unpack(pool, slots, torch.float32)
    want = torch.tensor([decode_row(codec, row, dim) for row in rows.tolist()], dtype=torch.float64)
    assert torch.equal(bits(actual), bits(want.float()))
    assert torch.equal(operation.unpack(pool, slots, torch.bfloat16), want.float().bfloat16())


@by_codec
@by_operation
@by_layout
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_both_layouts_amid_other_pages(codec: Codec, operation: ModuleType, planar: bool, dtype: torch.dtype) -> None:
    dim, page_size = 96, 4
    pool = pool_of(codec, dim, 5, page_size, planar=planar, layers=3)
    values = torch.randn(9, dim).to(dtype)
    slots = torch.tensor([19, 0, -1, 7, 8, 3, 4, -1, 12])  # page edges, the first and the last row
    operation.pack(values, pool, slots)
    written = {slot: row for slot, row in zip(slots.tolist(), values.tolist(), strict=True) if slot >= 0}
    for slot in range(pool.slots):
        want = encode_row(codec, written[slot]) if slot in written else [_GUARD] * codec.width(dim)
        assert row_bytes(pool, slot) == want
    assert int((whole_of(pool) != _GUARD).sum()) <= len(written) * codec.width(dim)
    assert bool((whole_of(pool).view(5, 3, -1)[:, [0, 2]] == _GUARD).all())
    assert bool((pool.data[:, -5:] == _GUARD).all())

    for integer in (torch.int32, torch.int64):
        actual = operation.unpack(pool, slots.view(3, 3).to(integer), torch.float32)
        assert actual.shape == (3, 3, dim)
        for slot, row in zip(slots.tolist(), actual.view(-1, dim).tolist(), strict=True):
            want_row = decode_row(codec, row_bytes(pool, slot), dim) if slot >= 0 else [0.0] * dim
            assert row == want_row


@by_operation
def test_nothing_to_do(operation: ModuleType) -> None:
    empty = Paged(torch.zeros(0, 4 * MAIN.width(32), dtype=torch.uint8), 4, 32, MAIN)
    nowhere = torch.tensor([-1, -1])
    operation.pack(torch.randn(2, 32), empty, nowhere)
    operation.pack(torch.randn(0, 32), empty, nowhere[:0])
    assert not operation.unpack(empty, nowhere, torch.float32).any()
    assert operation.unpack(empty, nowhere[:0], torch.float32).shape == (0, 32)
    assert operation.unpack(empty, nowhere.new_zeros(0, 3), torch.bfloat16).shape == (0, 3, 32)


@given(
    codec=st.sampled_from(SCALED),
    planar=st.booleans(),
    page_size=st.sampled_from([1, 2, 7, 64]),
    parts=st.integers(1, 5),
    layers=st.integers(1, 2),
    data=st.data(),
)
@settings(max_examples=40)
def test_any_rows_of_any_pool(
    codec: Codec, planar: bool, page_size: int, parts: int, layers: int, data: st.DataObject
) -> None:
    dim = parts * codec.block
    pool, other = (pool_of(codec, dim, 3, page_size, planar=planar, layers=layers) for _ in range(2))
    slots = data.draw(st.lists(st.integers(0, pool.slots - 1), unique=True, max_size=12), label="slots")
    absent = data.draw(st.lists(st.integers(0, 11), max_size=4), label="absent")
    for place in absent:
        slots.insert(min(place, len(slots)), -1)
    at = torch.tensor(slots, dtype=torch.int32)
    wide = torch.randn(len(slots), dim + 3)  # rows that lie apart
    launch.pack(wide[:, 1 : 1 + dim], pool, at)
    reference.pack(wide[:, 1 : 1 + dim], other, at)
    assert torch.equal(whole_of(pool), whole_of(other))
    again = torch.tensor(slots + slots[::-1], dtype=torch.int32)  # a row may be read twice
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(launch.unpack(pool, again, dtype), reference.unpack(other, again, dtype))


@by_codec
def test_released_sizes(codec: Codec) -> None:
    dim = 128 if codec is INDEX else 512
    for planar in (True, False):
        pool, other = (pool_of(codec, dim, 2, 256, planar=planar) for _ in range(2))
        values, slots = torch.randn(8, dim).bfloat16(), torch.tensor([511, 0, 255, 256, -1, 17, 300, 2])
        launch.pack(values, pool, slots)
        reference.pack(values, other, slots)
        assert torch.equal(whole_of(pool), whole_of(other))
        actual = launch.unpack(pool, slots, torch.bfloat16)
        assert torch.equal(actual, reference.unpack(other, slots, torch.bfloat16))


@by_operation
@by_layout
def test_pools_pass_two_to_the_31_bytes(operation: ModuleType, planar: bool) -> None:
    """Memory that nobody touches takes none."""
    far = 2**31 + 4096
    size = 4 * WINDOW.width(32)
    memory = torch.from_numpy(np.zeros(far + size, dtype=np.uint8))
    pool = Paged(memory.as_strided((2, size), (far, 1)), 4, 32, WINDOW, planar)
    row = torch.randn(1, 32)
    operation.pack(row, pool, torch.tensor([6]))
    assert row_bytes(pool, 6) == encode_row(WINDOW, row[0].tolist())
    assert torch.equal(operation.unpack(pool, torch.tensor([6]), torch.float32), WINDOW.round(row))
    assert not memory[:size].any()


def test_values_pass_two_to_the_31() -> None:
    apart = 2**30 + 16
    memory = torch.from_numpy(np.zeros(2 * apart + 32, dtype=np.int16)).view(torch.bfloat16)
    values = memory.as_strided((3, 32), (apart, 1))
    values[2] = torch.randn(32).bfloat16()
    pool = pool_of(WINDOW, 32, 1, 4, planar=False)
    launch.pack(values, pool, torch.tensor([-1, -1, 2]))
    assert row_bytes(pool, 2) == encode_row(WINDOW, values[2].tolist())


def test_wide_caches_are_torchs_alone() -> None:
    pool = Paged(torch.zeros(2, 4 * 64, dtype=torch.uint8), 4, 32, BFLOAT16)
    values, slots = torch.randn(3, 32), torch.tensor([7, -1, 2])
    reference.pack(values, pool, slots)
    actual = reference.unpack(pool, slots, torch.float64)
    assert torch.equal(actual[[0, 2]], values[[0, 2]].bfloat16().double())
    assert not actual[1].any()
    with pytest.raises(ValueError, match="bf16 format has no kernel: use the torch operations"):
        launch.pack(values, pool, slots)
    with pytest.raises(ValueError, match="bf16 format has no kernel: use the torch operations"):
        launch.unpack(pool, slots, torch.float32)


@by_codec
def test_torch_alone_takes_float64(codec: Codec) -> None:
    pool, other = (pool_of(codec, 64, 2, 4, planar=True) for _ in range(2))
    values, slots = torch.randn(3, 64, dtype=torch.float64), torch.tensor([5, 1, 6])
    reference.pack(values, pool, slots)
    assert torch.equal(reference.unpack(pool, slots, torch.float64), codec.round(values))
    with pytest.raises(ValueError, match=r"values are torch\.float64: kernels take and give float32 and bfloat16"):
        launch.pack(values, other, slots)
    with pytest.raises(ValueError, match=r"values are torch\.float64"):
        launch.unpack(other, slots, torch.float64)


def test_tiles_have_a_power_of_two_of_values_and_fit_any_row() -> None:
    assert set(TILES) == set(Architecture)
    for tile in TILES.values():
        for dim in (32, 96, 128, 512):
            rows, columns = tile.shape(dim)
            assert columns >= dim
            assert columns < 2 * dim
            assert rows & (rows - 1) == 0

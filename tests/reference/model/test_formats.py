"""The cache and weight formats against plain Python: exact fractions, value tables, nearest with ties to even."""

from __future__ import annotations

import functools
import itertools
import math
import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from epd_kernels.formats import reference as formats
from epd_kernels.formats.reference import BFLOAT16, INDEX, MAIN, WINDOW, Codec
from tests.support.reference.fractional import E2M1, E4M3, bits, decode_row, encode_row, vector_nearest

CODECS = [WINDOW, MAIN, INDEX, BFLOAT16]
SCALED = [WINDOW, MAIN, INDEX]
FLOATS = [torch.float32, torch.float64]

by_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
by_scaled = pytest.mark.parametrize("codec", SCALED, ids=lambda c: c.name)
by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def bfloat16_values() -> Tensor:
    """All 65,536, in float64."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).to(torch.float64)


def rows_of(values: list[float], codec: Codec, dtype: torch.dtype) -> Tensor:
    """One row, filled up with zeros to whole blocks."""
    size = codec.block or 1
    return torch.tensor(values + [0.0] * (-len(values) % size), dtype=dtype)


@functools.cache
def samples(dtype: torch.dtype, dim: int = 64) -> Tensor:
    """Rows of every magnitude the formats meet, ties, their neighbours, zeros of both signs."""
    pick = random.Random(5)
    rows = []
    for n in range(120):
        size = 2.0 ** pick.randint(-20, 12) if n % 2 else pick.choice([1e-30, 1e-9, 1.0, 448.0, 2688.0, 1e6, 1e30])
        row = [pick.gauss(0, 1) * size for _ in range(dim)]
        for i in range(0, dim, 4):
            row[i] = pick.choice(
                [0.0, -0.0, *(t * size for t in (0.25, -0.75, 1.25, 1.75, -2.5, 3.5, 5.0, 6.0, 448.0))]
            )
        rows.append(row)
    x = torch.tensor(rows, dtype=torch.float64).to(dtype)
    towards = torch.tensor([pick.choice([-math.inf, math.inf]) for _ in range(40 * dim)], dtype=dtype).reshape(40, dim)
    x[:40] = x[:40].nextafter(towards)
    return x


@by_scaled
@by_float
def test_bytes_equal_the_oracles(codec: Codec, dtype: torch.dtype) -> None:
    x = samples(dtype)
    assert codec.pack(x).tolist() == [encode_row(codec, row) for row in x.tolist()]


@by_scaled
@by_float
def test_values_equal_the_oracles(codec: Codec, dtype: torch.dtype) -> None:
    packed = codec.pack(samples(torch.float64))
    want = torch.tensor([decode_row(codec, row, 64) for row in packed.tolist()], dtype=torch.float64).to(dtype)
    assert torch.equal(bits(codec.unpack(packed, 64, dtype)), bits(want))


@by_codec
@by_float
def test_round_is_pack_and_unpack(codec: Codec, dtype: torch.dtype) -> None:
    every = bfloat16_values()
    every = every[every.isfinite()].reshape(-1, 32).to(dtype)
    shuffled = every.flatten()[torch.randperm(every.numel(), generator=torch.Generator().manual_seed(1))]
    for x in (samples(dtype), every, shuffled.reshape(-1, 64)):
        there = codec.unpack(codec.pack(x), x.shape[-1], dtype)
        assert torch.equal(bits(codec.round(x)), bits(there))
        assert codec.round(x).dtype == there.dtype == dtype


@by_codec
@by_float
def test_rounding_keeps_the_callers_tensor(codec: Codec, dtype: torch.dtype) -> None:
    x = samples(dtype).clone()
    codec.round(x)
    codec.pack(x)
    assert torch.equal(bits(x), bits(samples(dtype)))


# E2M1 and E4M3, exhaustively.


def test_e2m1_code_of_every_bfloat16_under_every_scale() -> None:
    values = bfloat16_values()
    values = values[values.isfinite()]
    sign = torch.signbit(values) * 8
    for scale in E4M3[1:]:
        # The oracle moves the midpoints to the value's side, where they are exact; the division is the product's.
        want = vector_nearest(values, [v * scale for v in E2M1]) + sign
        for dtype in FLOATS:
            got = formats.e2m1_code(values.to(dtype) / torch.tensor(float(scale), dtype=dtype))
            assert torch.equal(got.long(), want), (scale, dtype)


@by_float
def test_e4m3_code_of_every_bfloat16(dtype: torch.dtype) -> None:
    values = bfloat16_values()
    values = values[values.isfinite()]
    want = vector_nearest(values, E4M3) + torch.signbit(values) * 128
    assert torch.equal(formats.e4m3_code(values.to(dtype)).long(), want)


@by_float
def test_e4m3_ties_and_their_neighbours(dtype: torch.dtype) -> None:
    ties = torch.tensor([float((a + b) / 2) for a, b in itertools.pairwise(E4M3)], dtype=dtype)
    up = ties.nextafter(torch.tensor(math.inf, dtype=dtype))
    down = ties.nextafter(torch.tensor(0.0, dtype=dtype))
    low = torch.arange(126)
    assert torch.equal(formats.e4m3_code(up).long(), low + 1)
    assert torch.equal(formats.e4m3_code(down).long(), low)
    assert torch.equal(formats.e4m3_code(ties).long(), low + low % 2)
    large = torch.tensor([449.0, 465.0, 1e30, -1e30], dtype=dtype)
    assert formats.e4m3_code(large).tolist() == [126, 126, 126, 254]
    assert formats.e4m3_round(large).tolist() == [448.0, 448.0, 448.0, -448.0]


@by_float
def test_e2m1_ties_go_to_the_even_code(dtype: torch.dtype) -> None:
    ties = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}
    x = torch.tensor([*ties, *(-t for t in ties)], dtype=dtype)
    want = torch.tensor([*ties.values(), *(-v for v in ties.values())], dtype=dtype)
    assert torch.equal(bits(formats.e2m1_round(x)), bits(want))
    above = x.nextafter(torch.copysign(torch.tensor(9.0, dtype=dtype), x))
    below = x.nextafter(torch.zeros((), dtype=dtype))
    codes = torch.tensor([*range(7), *range(8, 15)])
    assert torch.equal(formats.e2m1_code(above).long(), codes + 1)
    assert torch.equal(formats.e2m1_code(below).long(), codes)


@by_float
def test_every_code_decodes_and_comes_back(dtype: torch.dtype) -> None:
    codes = torch.tensor([c for c in range(256) if c % 128 != 127], dtype=torch.uint8)
    e4m3 = torch.tensor(
        [math.copysign(float(E4M3[c % 128]), -1 if c > 127 else 1) for c in codes.tolist()], dtype=dtype
    )
    assert torch.equal(formats.e4m3_code(e4m3), codes)
    assert torch.equal(bits(formats.e4m3_round(e4m3)), bits(e4m3))
    e2m1 = torch.tensor([math.copysign(float(E2M1[c % 8]), -1 if c > 7 else 1) for c in range(16)], dtype=dtype)
    assert formats.e2m1_code(e2m1).tolist() == list(range(16))
    rows = torch.cat((torch.arange(256, dtype=torch.uint8), torch.full((32,), 56, dtype=torch.uint8)))  # scale 1
    pairs = MAIN.unpack(rows, 512, dtype).reshape(256, 2)
    assert torch.equal(bits(pairs[:, 0]), bits(e2m1.repeat(16)))
    assert torch.equal(bits(pairs[:, 1]), bits(e2m1.repeat_interleave(16)))


# Scales.


@by_float
def test_powers_of_two_round_up(dtype: torch.dtype) -> None:
    powers = torch.tensor([2.0**n for n in range(-126, 127)], dtype=dtype)
    n = torch.arange(-126, 127) + 127
    assert torch.equal(formats.power_code(powers).long(), n)
    assert torch.equal(formats.power_code(powers.nextafter(torch.tensor(math.inf, dtype=dtype))).long(), n + 1)
    assert torch.equal(formats.power_code(powers[1:].nextafter(torch.zeros((), dtype=dtype))).long(), n[1:])
    every = torch.arange(255, dtype=torch.uint8)
    assert formats.power(every, dtype).tolist() == [2.0 ** (code - 127) for code in range(255)]
    assert formats.power(torch.tensor([255], dtype=torch.uint8), dtype).isnan().all()


@pytest.mark.parametrize(("codec", "top"), [(WINDOW, 448.0), (INDEX, 6.0)], ids=["window", "index"])
@by_float
def test_a_scale_doubles_just_above_the_largest_value(codec: Codec, top: float, dtype: torch.dtype) -> None:
    for n in (-12, -1, 0, 1, 7, 30):
        edge = torch.tensor(top * 2.0**n, dtype=dtype)
        for amax, want in (
            (edge.nextafter(torch.zeros((), dtype=dtype)), n),
            (edge, n),
            (edge.nextafter(torch.tensor(math.inf, dtype=dtype)), n + 1),
        ):
            assert codec.pack(rows_of([-amax.item()], codec, dtype))[-1].item() - 127 == want


@by_scaled
@by_float
def test_no_scale_is_below_the_smallest(codec: Codec, dtype: torch.dtype) -> None:
    """Down to blocks of zeros and of subnormal values."""
    least = {WINDOW: 105, MAIN: 1, INDEX: 1}[codec]  # 2^-22, 2^-9, 2^-126
    rows = torch.zeros(5, codec.block, dtype=dtype)
    rows[1:, 0] = torch.tensor([2.0**-149, -(2.0**-127), 2.0**-126, -6 * 2.0**-126], dtype=dtype)
    assert codec.pack(rows).tolist() == [encode_row(codec, row) for row in rows.tolist()]
    assert codec.pack(rows)[:, -1].tolist() == [least] * 5


@by_float
def test_main_scales_stay_within_e4m3(dtype: torch.dtype) -> None:
    for amax, code, value in (
        (0.0, 1, 2.0**-9),
        (1e-30, 1, 2.0**-9),
        (6 * 2.0**-9, 1, 2.0**-9),
        (6 * 2.0**-8, 2, 2.0**-8),
        (448.0 * 6, 126, 448.0),
        (1e9, 126, 448.0),
    ):
        row = MAIN.pack(rows_of([amax], MAIN, dtype))
        assert row[-1].item() == code
        assert MAIN.round(rows_of([amax], MAIN, dtype))[0].item() == min(round(amax / value), 6) * value


@by_float
def test_main_scales_at_ties_round_to_the_even_code(dtype: torch.dtype) -> None:
    for low, (a, b) in enumerate(itertools.pairwise(E4M3[1:]), start=1):
        tie = torch.tensor(float(3 * (a + b)), dtype=dtype)
        near = [tie.nextafter(torch.zeros((), dtype=dtype)), tie, tie.nextafter(torch.tensor(math.inf, dtype=dtype))]
        got = [MAIN.pack(rows_of([amax.item()], MAIN, dtype))[-1].item() for amax in near]
        assert got == [low, low + low % 2, low + 1]


@by_float
def test_no_quotient_rounds_onto_a_tie(dtype: torch.dtype) -> None:
    for scale in E4M3[1:]:
        ties = torch.tensor([float((a + b) / 2 * scale) for a, b in itertools.pairwise(E2M1)], dtype=dtype)
        divisor = torch.tensor(float(scale), dtype=dtype)
        above, below = ties.nextafter(ties * 2), ties.nextafter(ties * 0)
        assert formats.e2m1_code(above / divisor).tolist() == list(range(1, 8))
        assert formats.e2m1_code(below / divisor).tolist() == list(range(7))


def test_float64_is_rounded_once() -> None:
    just_above_tie = 1.0625 + 2.0**-40
    assert formats.e4m3_round(torch.tensor([just_above_tie], dtype=torch.float64)).item() == 1.125
    wide = torch.tensor([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 2.0**-133 * 2.5, 0.0, -0.0], dtype=torch.float64)
    want = torch.tensor([1 + 2.0**-7, 1.0, 2.0**-132, 0.0, -0.0], dtype=torch.float64)
    assert torch.equal(bits(BFLOAT16.round(wide)), bits(want))


# Layout.


@by_codec
@by_float
def test_zero_rows_stay_zero_with_their_signs(codec: Codec, dtype: torch.dtype) -> None:
    x = torch.zeros(3, 64, dtype=dtype)
    x[1] = -0.0
    x[2, ::2] = -0.0
    assert torch.equal(bits(codec.round(x)), bits(x))
    assert torch.equal(bits(codec.unpack(codec.pack(x), 64, dtype)), bits(x))


def test_values_that_round_to_zero_keep_their_sign() -> None:
    for codec in SCALED:
        low = codec.round(rows_of([6.0, -1e-20, 1e-20], codec, torch.float32))
        assert low[1:3].tolist() == [0.0, 0.0]
        assert torch.signbit(low[1:3]).tolist() == [True, False]


def test_byte_counts() -> None:
    assert (WINDOW.width(512), MAIN.width(512), INDEX.width(128)) == (528, 288, 68)
    assert (BFLOAT16.width(512), BFLOAT16.width(128)) == (1024, 256)
    owners = Fraction(3, 2) + 1  # three of ratio 2, one of ratio 1
    assert (MAIN.width(512) + INDEX.width(128)) * owners == 890
    assert 40 * 128 * WINDOW.width(512) == 2_703_360


def test_codes_come_first_and_the_even_index_lies_low() -> None:
    x = torch.zeros(32)
    x[0], x[1], x[2], x[16], x[31] = 6.0, -1.0, 0.5, -12.0, 2.0
    main = MAIN.pack(x).tolist()
    assert main == [0x7 | 0xA0, 0x1, *[0] * 6, 0xF, *[0] * 6, 0x20, 0x38, 0x40]
    index = INDEX.pack(x).tolist()
    assert index == [0x5 | 0x90, 0x0, *[0] * 6, 0xF, *[0] * 6, 0x20, 128]
    x[0], x[16] = 448.0, -1.0
    window = WINDOW.pack(x).tolist()
    assert window == [0x7E, 0xB8, 0x30, *[0] * 13, 0xB8, *[0] * 14, 0x40, 127]


@by_codec
@given(
    shape=st.lists(st.integers(0, 3), max_size=3),
    blocks=st.integers(1, 5),
    dtype=st.sampled_from(FLOATS),
    strided=st.booleans(),
    size=st.floats(-30, 30),
    seed=st.integers(0, 2**16),
)
def test_any_shape(
    codec: Codec, shape: list[int], blocks: int, dtype: torch.dtype, strided: bool, size: float, seed: int
) -> None:
    dim = 32 * blocks
    random_rows = torch.randn(*shape, dim, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    wide = (random_rows * 10.0**size).to(dtype)
    x = wide[..., 0] if strided else wide[..., 0].contiguous()
    rows = codec.pack(x)
    assert rows.dtype == torch.uint8
    assert rows.shape == (*shape, codec.width(dim))
    back = codec.unpack(rows, dim, dtype)
    assert back.shape == x.shape
    assert torch.equal(bits(codec.round(x)), bits(back))
    assert torch.equal(codec.pack(x.reshape(-1, dim)), rows.reshape(-1, codec.width(dim)))
    spaced = torch.stack((rows, rows ^ 255), -1)[..., 0]
    assert torch.equal(bits(codec.unpack(spaced, dim, dtype)), bits(back))


def moves_twice(amax: Tensor) -> Tensor:
    """Where E4M3(amax / 6) is 2 * 2^-9 but the largest code 4: the next packing takes 2^-9 and saturates."""
    return (amax >= 9 / 512) & (amax <= 10 / 512)


@by_codec
@by_float
def test_decoded_rows_are_fixed_points(codec: Codec, dtype: torch.dtype) -> None:
    """Also where the second packing picks another scale."""
    x = samples(dtype).reshape(-1, 32 if codec is not MAIN else 16)
    if codec is MAIN:
        x = x[~moves_twice(x.abs().amax(-1))]
    once = codec.round(x)
    assert torch.equal(bits(codec.round(once)), bits(once))


@by_codec
@by_float
def test_fixed_points_under_every_bfloat16_amax(codec: Codec, dtype: torch.dtype) -> None:
    """With the one exception of the main format, whose third packing changes nothing any more."""
    amax = bfloat16_values()
    amax = amax[(amax > 0) & (amax < 2.0**127)]  # from there on, rounding up can leave float32
    parts = torch.tensor([1.0, -1.0, 0.9, 0.7, 0.51, -0.3, 0.26, 0.1, 0.01, 0.0, -0.0, 0.34, 0.6, 0.8, 0.43, 0.05])
    once = codec.round((amax[:, None] * parts.repeat(2)).to(dtype))
    twice = codec.round(once)
    moved = (bits(once) != bits(twice)).any(-1)
    assert torch.equal(moved, moves_twice(amax) if codec is MAIN else torch.zeros_like(moved))
    assert torch.equal(twice[moved, 0], torch.full_like(twice[moved, 0], 6 / 512))
    assert torch.equal(once[moved, 0], torch.full_like(once[moved, 0], 8 / 512))
    assert torch.equal(bits(codec.round(twice)), bits(twice))


@by_scaled
def test_a_block_knows_nothing_of_its_neighbours(codec: Codec) -> None:
    x = samples(torch.float64)[:1].clone()
    want = codec.round(x)
    for bad in (math.nan, math.inf, -math.inf, 1e300):
        x[0, 3] = bad
        assert torch.equal(bits(codec.round(x)[:, codec.block :]), bits(want[:, codec.block :]))
        assert codec.unpack(codec.pack(x), 64, torch.float64).shape == x.shape


@by_scaled
def test_wrong_lengths_are_named(codec: Codec) -> None:
    for call in (codec.pack, codec.round):
        with pytest.raises(ValueError, match=rf"dim is 40: .*{codec.name}.* multiple of {codec.block}"):
            call(torch.zeros(2, 40))
    with pytest.raises(ValueError, match=rf"rows are 7 bytes: 64 values .* take {codec.width(64)}"):
        codec.unpack(torch.zeros(2, 7, dtype=torch.uint8), 64, torch.float32)


# Gradients.


@by_codec
def test_no_gradient_but_through_ste(codec: Codec) -> None:
    x = samples(torch.float32).clone().requires_grad_()
    rounded = codec.round(x)
    assert not rounded.requires_grad
    through = formats.ste(x, rounded)
    assert torch.equal(through, rounded)
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    (grad,) = torch.autograd.grad((through * weight).sum(), x)
    assert torch.equal(grad, weight)


def test_ste_has_exactly_the_rounded_value() -> None:
    x = torch.tensor([1e9, 0.1, -3.3e-5, 16777217.0])
    rounded = torch.tensor([2688.3, 1.0 / 3, 7.7, 0.1])
    assert torch.equal(formats.ste(x, rounded), rounded)
    assert not torch.equal(x + (rounded - x), rounded)  # what the sum would give

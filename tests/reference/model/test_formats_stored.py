"""Stored weights: FP8 in 32 x 32 blocks, MXFP4, FP8 rows."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st

from epd_kernels.formats import reference as formats
from epd_kernels.formats.reference import INDEX, WINDOW
from tests.support.reference.fractional import E4M3, bits, decode_row, encode, encode_row

FLOATS = [torch.float32, torch.float64]


@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    size=st.floats(-8, 8),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 2**16),
)
def test_fp8_blocks(rows: int, columns: int, size: float, dtype: torch.dtype, seed: int) -> None:
    weight = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    weight = (weight * 10.0**size).to(dtype)
    codes, scales = formats.pack_fp8_blocks(weight)
    assert codes.shape == weight.shape
    assert scales.shape == (math.ceil(rows / 32), math.ceil(columns / 32))
    assert codes.dtype == scales.dtype == torch.uint8
    values = formats.unpack_fp8_blocks(codes, scales, dtype)
    for i, j in ((0, 0), (rows - 1, columns - 1), (rows // 2, columns // 3), (min(31, rows - 1), min(32, columns - 1))):
        r, c = i // 32 * 32, j // 32 * 32
        block = weight[r : r + 32, c : c + 32]
        (_, code), byte = encode(WINDOW, [block.abs().max().item(), weight[i, j].item()])
        assert scales[i // 32, j // 32] == byte
        assert codes[i, j] == code
        want = float(E4M3[code % 128] * Fraction(2) ** (byte - 127))
        assert values[i, j] == math.copysign(want, -1 if code > 127 else 1)
    again, same = formats.pack_fp8_blocks(values)
    assert torch.equal(formats.unpack_fp8_blocks(again, same, dtype), values)


@given(shape=st.lists(st.integers(0, 3), max_size=2), blocks=st.integers(1, 3), dtype=st.sampled_from(FLOATS))
def test_mxfp4_and_fp8_rows(shape: list[int], blocks: int, dtype: torch.dtype) -> None:
    dim = 32 * blocks
    weight = torch.randn(*shape, dim, dtype=dtype, generator=torch.Generator().manual_seed(blocks))
    flat = weight.reshape(-1, dim).tolist()
    for codec, pack, unpack, wide in (
        (INDEX, formats.pack_mxfp4, formats.unpack_mxfp4, dim // 2),
        (WINDOW, formats.pack_fp8_rows, formats.unpack_fp8_rows, dim),
    ):
        codes, scales = pack(weight)
        assert codes.shape == (*shape, wide)
        assert scales.shape == (*shape, blocks)
        both = torch.cat((codes, scales), -1).reshape(-1, wide + blocks)
        assert both.tolist() == [encode_row(codec, row) for row in flat]
        want = torch.tensor([decode_row(codec, row, dim) for row in both.tolist()], dtype=torch.float64).to(dtype)
        assert torch.equal(bits(unpack(codes, scales, dtype)), bits(want.reshape(weight.shape)))


def test_an_engram_row_takes_264_bytes() -> None:
    codes, scales = formats.pack_fp8_rows(torch.ones(5, 256))
    assert codes[0].nbytes + scales[0].nbytes == 264

"""The arithmetic that kernels share, against plain Python tables and torch, over every code there is."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from epd_kernels.numerics import cast, dot, e2m1_code, e2m1_value, e4m3_code, e4m3_value, power_of_two
from tests.kernels.values import finite_bfloat16
from tests.support.reference.fractional import E2M1, E4M3, bits, vector_nearest


@triton.jit
def _apply_kernel(x: Any, scales: Any, out: Any, SIZE: tl.constexpr, NAME: tl.constexpr) -> None:  # noqa: N803
    place = tl.arange(0, SIZE)
    program = tl.program_id(0)
    value = tl.load(x + place)
    if NAME == "e4m3_code":
        actual = e4m3_code(value)
    elif NAME == "e2m1_code":
        actual = e2m1_code(value, tl.load(scales + program))
    elif NAME == "e4m3_value":
        actual = e4m3_value(value)
    elif NAME == "e2m1_value":
        actual = e2m1_value(value)
    elif NAME == "power_of_two":
        actual = power_of_two(value)
    else:
        actual = cast(value, tl.bfloat16)
    tl.store(out + program * SIZE + place, actual)


@triton.jit
def _dot_kernel(a: Any, b: Any, out: Any, SIZE: tl.constexpr) -> None:  # noqa: N803
    row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    place = row * SIZE + column
    tl.store(out + place, dot(tl.load(a + place), tl.load(b + place)))


def apply(name: str, x: Tensor, dtype: torch.dtype, scales: Tensor | None = None) -> Tensor:
    """A function of `numerics` over a vector of any length; with scales [s]: [s, length]."""
    size = triton.next_power_of_2(len(x))
    padded = torch.cat((x, x[:1].expand(size - len(x))))
    lines = torch.ones(1) if scales is None else scales
    out = torch.zeros(len(lines), size, dtype=dtype)
    _apply_kernel[len(lines),](padded, lines, out, size, name)
    actual = out[:, : len(x)]
    return actual[0] if scales is None else actual


def edges(table: list[Any]) -> Tensor:
    """Ties between a table's values, the values, and the float32 neighbours of both; both signs."""
    points = torch.tensor([float(v) for v in table] + [float((a + b) / 2) for a, b in itertools.pairwise(table)])
    up, down = torch.tensor(float("inf")), torch.tensor(float("-inf"))
    near = torch.cat((points, points.nextafter(up), points.nextafter(down)))
    return torch.cat((near, -near))


def any_float32(count: int) -> Tensor:
    """Random bits, finite, below 2^127."""
    pick = torch.Generator().manual_seed(3)
    whole = torch.randint(-(2**31), 2**31, (count,), generator=pick).to(torch.int32).view(torch.float32)
    return whole[whole.abs() < 2.0**127]


def signed(x: Tensor, code: Tensor, sign: int) -> Tensor:
    return code + sign * x.signbit()


def test_every_e4m3_code_decodes() -> None:
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
    want = codes.view(torch.float8_e4m3fn).float()
    assert torch.equal(bits(apply("e4m3_value", codes, torch.float32)), bits(want))
    assert want[:127].tolist() == [float(value) for value in E4M3]


def test_every_e2m1_code_decodes() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    values = torch.tensor([float(value) for value in E2M1])
    assert torch.equal(bits(apply("e2m1_value", codes, torch.float32)), bits(torch.cat((values, -values))))


def test_every_power_of_two_decodes() -> None:
    codes = torch.arange(255, dtype=torch.uint8)
    assert apply("power_of_two", codes, torch.float32).tolist() == [2.0 ** (code - 127) for code in range(255)]


@pytest.mark.parametrize("sample", ["bfloat16", "edges", "float32"])
def test_e4m3_codes_are_the_nearest(sample: str) -> None:
    x = {"bfloat16": finite_bfloat16(), "edges": edges(E4M3), "float32": any_float32(2**18)}[sample]
    want = signed(x, vector_nearest(x.double(), E4M3), 0x80)
    assert torch.equal(apply("e4m3_code", x, torch.uint8).long(), want)


def test_e4m3_codes_and_values_are_inverse() -> None:
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
    assert torch.equal(apply("e4m3_code", apply("e4m3_value", codes, torch.float32), torch.uint8), codes)


def test_e2m1_codes_are_the_nearest_for_every_bfloat16_and_every_e4m3_scale() -> None:
    x, scales = finite_bfloat16(), torch.tensor([float(scale) for scale in E4M3[1:]])
    assert (len(x), len(scales)) == (65280, 126)
    for some in scales.split(21):
        actual = apply("e2m1_code", x, torch.uint8, some)
        for scale, codes in zip(some, actual, strict=True):
            # Quotients of 8 by 4 bits are nowhere nearer to a tie than float64 tells apart.
            assert torch.equal(codes.long(), signed(x, vector_nearest(x.double() / scale.double(), E2M1), 8))


def test_e2m1_codes_of_float32_values_beside_ties() -> None:
    scales = torch.tensor([float(E4M3[1]), float(E4M3[77]), 448.0, 2.0**-126, 2.0**100])
    x = torch.cat([edges(E2M1) * scale for scale in scales] + [any_float32(2**14)])
    for scale, codes in zip(scales, apply("e2m1_code", x, torch.uint8, scales), strict=True):
        limits = [value * scale.double() for value in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)]
        size = x.double().abs()
        want = sum(size >= limit if place % 2 else size > limit for place, limit in enumerate(limits))
        assert isinstance(want, Tensor)
        assert torch.equal(codes.long(), signed(x, want, 8))


def test_casting_to_bfloat16_rounds_half_to_even() -> None:
    ties = (torch.arange(0x3F80, 0x3F80 + 4096) << 16 | 0x8000).to(torch.int32).view(torch.float32)
    x = torch.cat((any_float32(2**18), ties, -ties, torch.tensor([0.0, -0.0])))
    assert torch.equal(apply("cast", x, torch.bfloat16).view(torch.int16), x.bfloat16().view(torch.int16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_of_matrices_are_float32s(dtype: torch.dtype) -> None:
    pick = torch.Generator().manual_seed(4)
    a, b = (torch.randn(16, 16, generator=pick).to(dtype) for _ in range(2))
    out = torch.zeros(16, 16)
    _dot_kernel[1,](a, b, out, 16)
    torch.testing.assert_close(out, (a.double() @ b.double()).float(), rtol=1e-6, atol=1e-6)

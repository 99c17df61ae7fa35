"""Rounding to the cache formats by searching sorted value tables: slow, plain, float64.

Source of the formats: DeepSeek-V4.1-Flash inference/model.py, revision dba1be0a; OCP Microscaling Formats 1.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

KvMode = Literal["fp4", "bf16", "exact"]

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
"""The magnitudes of E2M1; the index is the code without its sign."""


def e4m3_table() -> list[float]:
    """The 127 finite non-negative values of E4M3 in code order: 0, 2^-9, ..., 448."""
    values = []
    for code in range(127):
        exponent, mantissa = divmod(code, 8)
        values.append(mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return values


E4M3 = e4m3_table()


def nearest(x: Tensor, table: list[float]) -> Tensor:
    """Rounds each magnitude to the nearest table value; a tie takes the even code; above the last value saturates."""
    values = torch.tensor(table, dtype=torch.float64)
    magnitude = x.abs().clamp(max=table[-1])
    above = torch.searchsorted(values, magnitude).clamp(max=len(table) - 1)
    below = (above - 1).clamp(min=0)
    up, down = values[above] - magnitude, magnitude - values[below]
    tie = torch.where(above % 2 == 0, above, below)
    code = torch.where(up < down, above, torch.where(down < up, below, tie))
    return torch.where(x < 0, -values[code], values[code])


def power_of_two_above(x: Tensor) -> Tensor:
    """2^ceil(log2(x)) of positive x, without a logarithm that could round."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.ones_like(x), exponent.to(torch.float64) - (mantissa == 0.5).to(torch.float64))


def blocks(x: Tensor, size: int) -> Tensor:
    """[..., D] -> [..., D / size, size]."""
    return x.reshape(*x.shape[:-1], -1, size)


def window_fp8(x: Tensor) -> Tensor:
    """FP8 windows: per 32 values a scale 2^ceil(log2(max(amax, 1e-4) / 448)), codes E4M3."""
    b = blocks(x, 32)
    scale = power_of_two_above(b.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448)
    return (nearest(b / scale, E4M3) * scale).reshape(x.shape)


def main_fp4(x: Tensor) -> Tensor:
    """FP4 main entries: per 16 values a scale E4M3(max(amax, 6 * 2^-9) / 6), codes E2M1."""
    b = blocks(x, 16)
    scale = nearest(b.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-9) / 6, E4M3)
    return (nearest(b / scale, E2M1) * scale).reshape(x.shape)


def index_mxfp4(x: Tensor) -> Tensor:
    """MXFP4 index vectors: per 32 values a scale 2^ceil(log2(max(amax, 6 * 2^-126) / 6)), codes E2M1."""
    b = blocks(x, 32)
    scale = power_of_two_above(b.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126) / 6)
    return (nearest(b / scale, E2M1) * scale).reshape(x.shape)


def bf16(x: Tensor) -> Tensor:
    """Rounds to the 8 significant bits of bfloat16, half to even (normal range)."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.round(mantissa * 256) / 256, exponent.to(torch.float64))


def _rounded(x: Tensor, kv: KvMode, packed: Callable[[Tensor], Tensor]) -> Tensor:
    if kv == "exact":
        return x
    return bf16(x) if kv == "bf16" else packed(x)


def round_window(x: Tensor, kv: KvMode) -> Tensor:
    """A window row as its cache returns it."""
    return _rounded(x, kv, window_fp8)


def round_main(x: Tensor, kv: KvMode) -> Tensor:
    """A main entry as its cache returns it."""
    return _rounded(x, kv, main_fp4)


def round_index(x: Tensor, kv: KvMode) -> Tensor:
    """An index key or an index query as the indexer sees it."""
    return _rounded(x, kv, index_mxfp4)

"""The formats one value at a time in exact fractions, sharing nothing with the codecs but their names.

Source of the formats: DeepSeek-V4.1-Flash inference/model.py, revision dba1be0a; OCP Microscaling Formats 1.0.
"""

from __future__ import annotations

import bisect
import itertools
import math
from fractions import Fraction

import torch
from torch import Tensor

from epd_kernels.formats.reference import MAIN, WINDOW, Codec

E2M1 = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]
E4M3 = [
    Fraction(m, 512) if e == 0 else Fraction(8 + m, 8) * Fraction(2) ** (e - 7) for e in range(16) for m in range(8)
]
E4M3.pop()  # 0x7F is NaN


def nearest_code(x: Fraction, table: list[Fraction]) -> int:
    """The code of the magnitude nearest to |x|; of two equally near ones the even code; the last one saturates."""
    above = min(bisect.bisect_left(table, abs(x)), len(table) - 1)
    return min((max(above - 1, 0), above), key=lambda code: (abs(abs(x) - table[code]), code % 2))


def ceil_log2(x: Fraction) -> int:
    n = 0
    while Fraction(2) ** n < x:
        n += 1
    while Fraction(2) ** (n - 1) >= x:
        n -= 1
    return n


def negative(x: float) -> bool:
    return math.copysign(1, x) < 0


def encode(codec: Codec, block: list[float]) -> tuple[list[int], int]:
    """Codes with their sign bit and the scale's byte of one block."""
    amax = max(abs(Fraction(x)) for x in block)
    if codec is MAIN:
        byte = nearest_code(max(amax, Fraction(6, 512)) / 6, E4M3)
        scale, table, sign = E4M3[byte], E2M1, 8
    else:
        least, top = (Fraction(1, 10**4), 448) if codec is WINDOW else (Fraction(6, 2**126), 6)
        byte = ceil_log2(max(amax, least) / top) + 127
        scale = Fraction(2) ** (byte - 127)
        table, sign = (E4M3, 128) if codec is WINDOW else (E2M1, 8)
    return [nearest_code(Fraction(x) / scale, table) + sign * negative(x) for x in block], byte


def encode_row(codec: Codec, row: list[float]) -> list[int]:
    blocks = [encode(codec, row[i : i + codec.block]) for i in range(0, len(row), codec.block)]
    codes = [code for block, _ in blocks for code in block]
    if codec is not WINDOW:
        codes = [low + 16 * high for low, high in zip(codes[::2], codes[1::2], strict=True)]
    return codes + [byte for _, byte in blocks]


def decode_row(codec: Codec, row: list[int], dim: int) -> list[float]:
    if codec is WINDOW:
        codes, sign, table = row[:dim], 128, E4M3
    else:
        codes, sign, table = [half for byte in row[: dim // 2] for half in (byte % 16, byte // 16)], 8, E2M1
    scales = row[len(row) - dim // codec.block :]
    values = []
    for i, code in enumerate(codes):
        byte = scales[i // codec.block]
        scale = E4M3[byte] if codec is MAIN else Fraction(2) ** (byte - 127)
        values.append(math.copysign(float(table[code % sign] * scale), -1 if code >= sign else 1))
    return values


def vector_nearest(x: Tensor, table: list[Fraction]) -> Tensor:
    """`nearest_code` of float64 tensors: the midpoints below; one hit exactly counts if it leads to an even code."""
    code = torch.zeros(x.shape, dtype=torch.int64)
    for low, (a, b) in enumerate(itertools.pairwise(table)):
        middle = float((a + b) / 2)
        code += (x.abs() >= middle) if low % 2 else (x.abs() > middle)
    return code


def bits(x: Tensor) -> Tensor:
    """For comparisons that tell -0 from 0."""
    return x.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int64)

"""The bytes of caches and stored weights: FP8, FP4 and MXFP4, bit for bit as the released formats.

A row is stored as all its codes, then all its scales. Scales are powers of two (UE8M0) for FP8 and MXFP4, E4M3 for the
main cache. Rounding is half to even and saturating everywhere, and happens once: a float64 value is never first rounded
to float32. The sign of zero is kept.

Tensors are float32 or float64, any leading dimensions, and come back in the type they had; no gradient
passes, except through `ste`. Finite values are the caller's duty: a NaN or an infinity makes the block that shares its
scale unspecified (nothing raises) and leaves all other blocks as they are; so does a float32 value from 2^127 on,
which may round up to infinity.

Sources: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a; SGLang 0.5.23, kernels/ops/attention/dsv4/
kv_layout.py; OCP Microscaling Formats 1.0 (E2M1, UE8M0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from epd_kernels.paged import Paged

E4M3_MAX: Final = 448.0
E2M1_MAX: Final = 6.0
WEIGHT_BLOCK: Final = 32
_BIAS: Final = 127
_TINY_AMAX: Final = 1e-4
_TINY_MAIN: Final = E2M1_MAX * 2.0**-9
_TINY_INDEX: Final = E2M1_MAX * 2.0**-126
_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FLOATS: Final = (torch.float32, torch.float64)


def _tables(values: Tensor) -> dict[torch.dtype, Tensor]:
    return {dtype: values.to(dtype) for dtype in _FLOATS}


_E2M1: Final = torch.tensor([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], dtype=torch.float64)
_PAIRS: Final = {
    dtype: torch.view_as_complex(pairs)  # one element a pair: gathered at once
    for dtype, pairs in _tables(torch.stack((_E2M1.repeat(16), _E2M1.repeat_interleave(16)), -1)).items()
}
_E4M3: Final = _tables(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float64))
_POWERS: Final = _tables(
    torch.tensor([*(2.0 ** (code - _BIAS) for code in range(255)), float("nan")], dtype=torch.float64)
)

Kind = Literal["window", "main", "index", "bf16"]


@dataclass(frozen=True)
class _Layout:
    """Where a float type keeps its exponent.

    Attributes:
        bits: The integer type of its size.
        exponent: Mask of the exponent field.
        mantissa: Stored mantissa bits.
    """

    bits: torch.dtype
    exponent: int
    mantissa: int


_LAYOUTS: Final = {
    torch.float32: _Layout(torch.int32, 0x7F80_0000, 23),
    torch.float64: _Layout(torch.int64, 0x7FF0_0000_0000_0000, 52),
}


@dataclass(frozen=True)
class Codec:
    """One cache format.

    Attributes:
        name: Its name.
        block: Values that share a scale; 0 without scales.
        code_bits: Bits of a code.
    """

    name: Kind
    block: int
    code_bits: int

    def code_bytes(self, dim: int) -> int:
        """Bytes of the codes of a row of `dim` values."""
        return dim * self.code_bits // 8

    def width(self, dim: int) -> int:
        """Bytes of a row of `dim` values.

        Raises:
            ValueError: `dim` is not a multiple of `block`.
        """
        if self.block and dim % self.block:
            raise ValueError(f"dim is {dim}: rows of the {self.name} format must be a multiple of {self.block} long")
        return self.code_bytes(dim) + (dim // self.block if self.block else 0)

    def pack(self, x: Tensor) -> Tensor:
        """Rows [..., dim] to uint8 [..., width(dim)].

        Raises:
            ValueError: `dim` is not a multiple of `block`.
        """
        if self.name == "bf16":
            return _dense(_bfloat16(x.detach())).view(torch.uint8)
        blocks = self._blocks(x)
        scale, scale_code = self._scales(blocks)
        scaled = (blocks / scale).flatten(-2)
        codes = e4m3_code(scaled) if self.name == "window" else pair_codes(e2m1_code(scaled))
        return torch.cat((codes, scale_code.squeeze(-1)), -1)

    def unpack(self, rows: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        """uint8 [..., width(dim)] to rows [..., dim].

        Raises:
            ValueError: Rows are not `width(dim)` bytes long.
        """
        if rows.shape[-1] != self.width(dim):
            raise ValueError(
                f"rows are {rows.shape[-1]} bytes: {dim} values of the {self.name} format take {self.width(dim)}"
            )
        if self.name == "bf16":
            return _dense(rows).view(torch.bfloat16).to(dtype)
        size = self.code_bytes(dim)
        codes, scale_code = rows[..., :size], rows[..., size:]
        values = _look_up(_E4M3, codes, dtype) if self.name == "window" else _pair_values(codes, dtype)
        scale = _look_up(_E4M3, scale_code, dtype) if self.name == "main" else power(scale_code, dtype)
        return values.reshape(*rows.shape[:-1], dim // self.block, self.block).mul_(scale[..., None]).flatten(-2)

    def round(self, x: Tensor) -> Tensor:
        """What a row [..., dim] is after `pack` and `unpack`, bit for bit.

        Raises:
            ValueError: `dim` is not a multiple of `block`.
        """
        if self.name == "bf16":
            return _bfloat16(x.detach()).to(x.dtype)
        blocks = self._blocks(x)
        scale, _ = self._scales(blocks)
        scaled = blocks / scale
        return (e4m3_round(scaled) if self.name == "window" else e2m1_round(scaled)).mul_(scale).flatten(-2)

    def _blocks(self, x: Tensor) -> Tensor:
        self.width(x.shape[-1])
        return x.detach().reshape(*x.shape[:-1], x.shape[-1] // self.block, self.block)

    def _scales(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Scales and their bytes, [..., n, 1], of blocks [..., n, block].

        Dividing in the blocks' own type is safe: no quotient of a value by 6, by 448 or by an E4M3 scale rounds onto a
        power of two or a tie that it did not already equal.
        """
        amax = blocks.abs().amax(-1, keepdim=True)
        if self.name == "main":
            code = e4m3_code(amax.clamp(min=_TINY_MAIN) / E2M1_MAX)
            return _look_up(_E4M3, code, blocks.dtype), code
        least, top = (_TINY_AMAX, E4M3_MAX) if self.name == "window" else (_TINY_INDEX, E2M1_MAX)
        code = power_code(amax.clamp(min=least) / top)
        return power(code, blocks.dtype), code


WINDOW: Final = Codec("window", 32, 8)
"""Window rows: E4M3, one UE8M0 scale 2^ceil(log2(max(amax, 1e-4) / 448)) per 32."""
MAIN: Final = Codec("main", 16, 4)
"""Global entries: E2M1, one E4M3 scale E4M3(max(amax, 6 * 2^-9) / 6) per 16.

Rounding twice is not rounding once: where 9 * 2^-9 <= amax <= 10 * 2^-9 the scale is 2 * 2^-9 and the largest code 4;
a second packing would take half that scale and saturate. Pack unrounded values; move bytes, not values.
"""
INDEX: Final = Codec("index", 32, 4)
"""Index queries and keys: E2M1, one UE8M0 scale 2^ceil(log2(max(amax, 6 * 2^-126) / 6)) per 32."""
BFLOAT16: Final = Codec("bf16", 0, 16)
"""Wide caches, for comparison."""


def pack(values: Tensor, pool: Paged, slots: Tensor) -> None:
    """Encode rows into a pool, in place.

    Args:
        values: [n, dim], any float dtype; bfloat16 is widened first, which changes nothing.
        pool: Where to.
        slots: [n] int32 or int64, all different; -1 drops the row.
    """
    kept = slots >= 0
    if not bool(kept.all()):
        values, slots = values[kept], slots[kept]
    rows = pool.codec.pack(_wide(values))
    page, place = slots.long() // pool.page_size, slots.long() % pool.page_size
    first = pool.data.storage_offset()
    for part in _parts(pool):
        size = (len(pool.data), pool.page_size, part.bytes)
        view = pool.data.as_strided(size, (pool.page_stride, part.stride, 1), first + part.start)
        view[page, place] = rows[:, part.column : part.column + part.bytes]


def unpack(pool: Paged, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """Decode rows of a pool.

    Args:
        pool: Where from.
        slots: [...] int32 or int64; -1 reads as zeros.
        dtype: Of the result.

    Returns:
        [..., dim].
    """
    absent = slots < 0
    if bool(absent.all()):
        return torch.zeros(*slots.shape, pool.dim, dtype=dtype, device=pool.data.device)
    at = slots.reshape(-1).clamp(min=0).long()
    page, place = at // pool.page_size, at % pool.page_size
    end = (len(pool.data) - 1) * pool.page_stride + pool.data.shape[1]
    parts = []
    for part in _parts(pool):
        # Every byte begins an overlapping row: one fast gather serves any layout.
        starts = pool.data.as_strided((end - part.bytes + 1, part.bytes), (1, 1))
        parts.append(starts.index_select(0, page * pool.page_stride + part.start + place * part.stride))
    rows = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
    values = pool.codec.unpack(rows, pool.dim, dtype if dtype in _FLOATS else torch.float32).to(dtype)
    return values.reshape(*slots.shape, pool.dim).masked_fill_(absent[..., None], 0.0)


@dataclass(frozen=True)
class _Part:
    """Bytes of a row that lie together.

    Attributes:
        column: The first one's place in an encoded row.
        bytes: How many.
        start: Bytes from a page's begin to those of its first row.
        stride: Bytes to those of the next row.
    """

    column: int
    bytes: int
    start: int
    stride: int


def _parts(pool: Paged) -> Iterator[_Part]:
    if not pool.planar:
        yield _Part(0, pool.code_stride, 0, pool.code_stride)
        return
    yield _Part(0, pool.code_bytes, 0, pool.code_stride)
    if pool.scale_bytes:
        yield _Part(pool.code_bytes, pool.scale_bytes, pool.scale_start, pool.scale_stride)


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype in _FLOATS else values.float()


def ste(x: Tensor, rounded: Tensor) -> Tensor:
    """The value of `rounded`, exactly, with the gradient of `x`."""
    return rounded.detach() + (x - x.detach())


def _nearest(x: Tensor, top: float, least: float, bits: int) -> Tensor:
    """The nearest value with `bits` stored mantissa bits, half to even, at most `top` in magnitude.

    Adding and taking away 1.5 * 2^n makes the hardware round to the last place of 2^n: n is chosen for each value from
    its own binade, or from that of `least`, below which the format is subnormal (equally spaced).
    """
    layout = _LAYOUTS[x.dtype]
    limited = x.clamp(-top, top)
    magic = limited.abs().clamp_(min=least)
    magic.view(layout.bits).bitwise_and_(layout.exponent)
    magic.mul_(1.5 * 2.0 ** (layout.mantissa - bits))
    return limited.add_(magic).sub_(magic).copysign_(x)


def _bfloat16(x: Tensor) -> Tensor:
    """The nearest bfloat16; torch would take a float64 through float32 and round twice."""
    return (_nearest(x, float("inf"), 2.0**-126, 7) if x.dtype == torch.float64 else x).to(torch.bfloat16)


def _dense(x: Tensor) -> Tensor:
    """A copy with unit stride; `contiguous` would leave an empty tensor's strides."""
    return x.clone(memory_format=torch.contiguous_format)


def e4m3_round(x: Tensor) -> Tensor:
    """The nearest E4M3 value, at most 448 in magnitude."""
    return _nearest(x, E4M3_MAX, 2.0**-6, 3)


def e4m3_code(x: Tensor) -> Tensor:
    """E4M3 bytes of the nearest values."""
    return e4m3_round(x).to(torch.float32).to(torch.float8_e4m3fn).view(torch.uint8)


def e2m1_round(x: Tensor) -> Tensor:
    """The nearest E2M1 value, at most 6 in magnitude."""
    return _nearest(x, E2M1_MAX, 1.0, 1)


def e2m1_code(x: Tensor) -> Tensor:
    """E2M1 codes 0..15 of the nearest values: sign bit 8, magnitude number 0..7.

    E2M1 times 2^-6 is E4M3 with the same subnormal boundary and two more mantissa bits, both zero.
    """
    wide = (e2m1_round(x) * 2.0**-6).to(torch.float32).to(torch.float8_e4m3fn).view(torch.uint8)
    return (wide >> 2 & 7) | (wide >> 4 & 8)


def pair_codes(codes: Tensor) -> Tensor:
    """Two codes a byte, the even index in the low nibble: [..., n] to [..., n / 2]."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def _look_up(table: dict[torch.dtype, Tensor], codes: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of codes, where these are."""
    return table[dtype].to(codes.device)[codes.int()]


def _pair_values(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """The values [..., n] of pairs [..., n / 2]."""
    return torch.view_as_real(_look_up(_PAIRS, codes, dtype)).flatten(-2)


def power_code(x: Tensor) -> Tensor:
    """UE8M0 bytes of 2^ceil(log2(x)), x > 0, at most 2^127."""
    mantissa, exponent = torch.frexp(x)
    return (exponent - (mantissa == 0.5).to(exponent.dtype) + _BIAS).clamp(0, 254).to(torch.uint8)


def power(code: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of UE8M0 bytes; byte 255 is NaN."""
    return _look_up(_POWERS, code, dtype)


def pack_fp8_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix [out, in] as E4M3 codes [out, in] and UE8M0 scales [ceil(out / 32), ceil(in / 32)], one per 32 x 32.

    A scale is 2^ceil(log2(max(amax, 1e-4) / 448)); edge blocks may be smaller.
    """
    rows, columns = weight.shape
    side = WEIGHT_BLOCK
    padded = functional.pad(weight.detach(), (0, -columns % side, 0, -rows % side))
    blocks = padded.reshape(padded.shape[0] // side, side, padded.shape[1] // side, side)
    scale = power_code(blocks.abs().amax((1, 3)).clamp(min=_TINY_AMAX) / E4M3_MAX)
    codes = e4m3_code(blocks / power(scale, weight.dtype)[:, None, :, None])
    return codes.flatten(2, 3).flatten(0, 1)[:rows, :columns].contiguous(), scale


def unpack_fp8_blocks(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix [out, in] of `pack_fp8_blocks`."""
    rows, columns = codes.shape
    wide = power(scale, dtype).repeat_interleave(WEIGHT_BLOCK, 0).repeat_interleave(WEIGHT_BLOCK, 1)
    return codes.view(torch.float8_e4m3fn).to(dtype) * wide[:rows, :columns]


def pack_mxfp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [..., in] as E2M1 pairs [..., in / 2] and UE8M0 scales [..., in / 32]."""
    size = weight.shape[-1] // 2
    rows = INDEX.pack(weight)
    return rows[..., :size].contiguous(), rows[..., size:].contiguous()


def unpack_mxfp4(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows [..., in] of `pack_mxfp4`."""
    return INDEX.unpack(torch.cat((codes, scale), -1), 2 * codes.shape[-1], dtype)


def pack_fp8_rows(table: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [n, dim] as E4M3 codes [n, dim] and UE8M0 scales [n, dim / 32]."""
    dim = table.shape[-1]
    rows = WINDOW.pack(table)
    return rows[..., :dim].contiguous(), rows[..., dim:].contiguous()


def unpack_fp8_rows(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows [n, dim] of `pack_fp8_rows`."""
    return WINDOW.unpack(torch.cat((codes, scale), -1), codes.shape[-1], dtype)

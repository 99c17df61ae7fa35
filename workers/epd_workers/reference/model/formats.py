"""The bytes of caches and stored weights: FP8, FP4 and MXFP4, bit for bit as the released formats.

A row is stored as all its codes, then all its scales. Scales are powers of two (UE8M0) for FP8 and MXFP4, E4M3 for the
main cache. Rounding is half to even everywhere. Values must be finite: NaN and infinities give unspecified codes.

Sources: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a; SGLang 0.5.23, kernels/ops/attention/dsv4/
kv_layout.py; OCP Microscaling Formats 1.0 (E2M1, UE8M0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

E4M3_MAX: Final = 448.0
E2M1_MAX: Final = 6.0
WEIGHT_BLOCK: Final = 32
_BIAS: Final = 127
_TINY_AMAX: Final = 1e-4
_TINY_MAIN: Final = E2M1_MAX * 2.0**-9
_TINY_INDEX: Final = E2M1_MAX * 2.0**-126
_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES: Final = torch.tensor([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], dtype=torch.float64)
_PAIRS: Final = torch.stack((_VALUES.repeat(16), _VALUES.repeat_interleave(16)), -1)
_POWERS: Final = torch.ldexp(torch.ones(256, dtype=torch.float64), torch.arange(256) - _BIAS)

Kind = Literal["window", "main", "index", "bf16"]


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

    def width(self, dim: int) -> int:
        """Bytes of a row of `dim` values."""
        return dim * self.code_bits // 8 + (dim // self.block if self.block else 0)

    def pack(self, x: Tensor) -> Tensor:
        """Rows [..., dim] to uint8 [..., width(dim)]."""
        if self.name == "bf16":
            return x.to(torch.bfloat16).contiguous().view(torch.uint8)
        blocks = x.unflatten(-1, (-1, self.block))
        scale, scale_code = self._scales(blocks)
        scaled = (blocks / scale).flatten(-2)
        codes = e4m3_code(scaled) if self.name == "window" else pair_codes(e2m1_code(scaled))
        return torch.cat((codes, scale_code.squeeze(-1)), -1)

    def unpack(self, rows: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        """uint8 [..., width(dim)] to rows [..., dim]."""
        if self.name == "bf16":
            return rows.contiguous().view(torch.bfloat16).to(dtype)
        size = dim * self.code_bits // 8
        codes, scale_code = rows[..., :size].contiguous(), rows[..., size:].contiguous()
        values = codes.view(torch.float8_e4m3fn).to(dtype) if self.name == "window" else _PAIRS.to(dtype)[codes.int()]
        scale = scale_code.view(torch.float8_e4m3fn).to(dtype) if self.name == "main" else power(scale_code, dtype)
        return (values.reshape(*rows.shape[:-1], -1, self.block) * scale[..., None]).flatten(-2)

    def round(self, x: Tensor) -> Tensor:
        """What a row [..., dim] is after `pack` and `unpack`."""
        if self.name == "bf16":
            return x.to(torch.bfloat16).to(x.dtype)
        blocks = x.unflatten(-1, (-1, self.block))
        scale, _ = self._scales(blocks)
        scaled = blocks / scale
        return ((e4m3_round(scaled) if self.name == "window" else e2m1_round(scaled)) * scale).flatten(-2)

    def _scales(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Scales and their bytes, [..., n, 1], of blocks [..., n, block]."""
        amax = blocks.abs().amax(-1, keepdim=True)
        if self.name == "main":
            code = e4m3_code(amax.clamp(min=_TINY_MAIN) / E2M1_MAX)
            return code.view(torch.float8_e4m3fn).to(blocks.dtype), code
        least, top = (_TINY_AMAX, E4M3_MAX) if self.name == "window" else (_TINY_INDEX, E2M1_MAX)
        code = power_code(amax.clamp(min=least) / top)
        return power(code, blocks.dtype), code


WINDOW: Final = Codec("window", 32, 8)
"""Window rows: E4M3, one UE8M0 scale 2^ceil(log2(max(amax, 1e-4) / 448)) per 32."""
MAIN: Final = Codec("main", 16, 4)
"""Global entries: E2M1, one E4M3 scale E4M3(max(amax, 6 * 2^-9) / 6) per 16."""
INDEX: Final = Codec("index", 32, 4)
"""Index queries and keys: E2M1, one UE8M0 scale 2^ceil(log2(max(amax, 6 * 2^-126) / 6)) per 32."""
BFLOAT16: Final = Codec("bf16", 0, 16)
"""Wide caches, for comparison."""


def ste(x: Tensor, rounded: Tensor) -> Tensor:
    """The value of `rounded` with the gradient of `x`."""
    return x + (rounded - x).detach()


def e4m3_round(x: Tensor) -> Tensor:
    """The nearest E4M3 value, at most 448 in magnitude."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float32).to(torch.float8_e4m3fn).to(x.dtype)


def e4m3_code(x: Tensor) -> Tensor:
    """E4M3 bytes of the nearest values."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float32).to(torch.float8_e4m3fn).view(torch.uint8)


def e2m1_round(x: Tensor) -> Tensor:
    """The nearest E2M1 value, at most 6 in magnitude."""
    size = x.abs().clamp(max=E2M1_MAX)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0)).to(x.dtype)
    return torch.copysign(torch.round(size / step) * step, x)


def e2m1_code(x: Tensor) -> Tensor:
    """E2M1 codes 0..15 of the nearest values: sign bit 8, magnitude number 0..7."""
    size = e2m1_round(x).abs()
    number = torch.where(size < 2, size * 2, torch.where(size < 4, size + 2, size / 2 + 4))
    return number.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 3)


def pair_codes(codes: Tensor) -> Tensor:
    """Two codes a byte, the even index in the low nibble: [..., n] to [..., n / 2]."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def power_code(x: Tensor) -> Tensor:
    """UE8M0 bytes of 2^ceil(log2(x)), x > 0."""
    mantissa, exponent = torch.frexp(x)
    return (exponent - (mantissa == 0.5).to(exponent.dtype) + _BIAS).clamp(0, 254).to(torch.uint8)  # noqa: PLR2004 - frexp's mantissa of a power of two


def power(code: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of UE8M0 bytes."""
    return _POWERS.to(dtype)[code.int()]


def pack_fp8_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix [out, in] as E4M3 codes [out, in] and UE8M0 scales [ceil(out / 32), ceil(in / 32)], one per 32 x 32."""
    rows, columns = weight.shape
    side = WEIGHT_BLOCK
    padded = functional.pad(weight, (0, -columns % side, 0, -rows % side))
    blocks = padded.unflatten(0, (-1, side)).unflatten(2, (-1, side))
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

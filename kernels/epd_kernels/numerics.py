"""What kernels share: arithmetic that is the same compiled and in Triton's interpreter.

The interpreter (up to 3.9.0) computes bfloat16 as if it were integers and casts float32 to bfloat16 and FP8 wrongly, so
operands are widened before every use and rounded by integer arithmetic before every cast.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def dot(a, b):
    """Matrix product with a float32 result; float32 operands are multiplied without rounding to TF32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision="ieee")


@triton.jit
def to_bfloat16(x):
    """Finite float32 to bfloat16, half to even."""
    if INTERPRETED:
        bits = x.to(tl.uint32, bitcast=True)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def cast(x, dtype: tl.constexpr):
    """Finite float32 to float32 or bfloat16."""
    if dtype == tl.bfloat16:
        return to_bfloat16(x)
    else:
        return x.to(dtype)


@triton.jit
def e4m3_code(x):
    """E4M3 bytes (uint8) of the values nearest to float32, half to even, at most 448 in magnitude, the sign kept."""
    magnitude = tl.minimum(tl.abs(x), 448.0)
    bits = magnitude.to(tl.uint32, bitcast=True)
    # Exponents begin 120 higher in float32; a carry out of the mantissa moves to the next one, as it must.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 values are 2^-9 apart: one unit in the last place of 1.5 * 2^14, so that adding it rounds to them.
    small = (magnitude + 24576.0).to(tl.uint32, bitcast=True) - 0x46C00000
    code = tl.where(magnitude < 0.015625, small, normal)
    return (code | ((x.to(tl.uint32, bitcast=True) >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def e2m1_code(x, scale):
    """E2M1 codes 0..15 (uint8) of the values nearest to x / scale, half to even, at most 6, the sign kept.

    No division: a tie times a scale (a power of two or an E4M3 value) is exact in float32, a quotient is not.

    Args:
        x: float32.
        scale: float32, positive, of a shape that broadcasts.
    """
    magnitude = tl.abs(x)
    code = (magnitude > 0.25 * scale).to(tl.uint32)
    code += (magnitude >= 0.75 * scale).to(tl.uint32)
    code += (magnitude > 1.25 * scale).to(tl.uint32)
    code += (magnitude >= 1.75 * scale).to(tl.uint32)
    code += (magnitude > 2.5 * scale).to(tl.uint32)
    code += (magnitude >= 3.5 * scale).to(tl.uint32)
    code += (magnitude > 5.0 * scale).to(tl.uint32)
    return (code | ((x.to(tl.uint32, bitcast=True) >> 28) & 8)).to(tl.uint8)


@triton.jit
def power_of_two(code):
    """UE8M0 bytes (an integer tensor, 0..254) to float32; byte 0 is 2^-127, which is subnormal."""
    code = code.to(tl.uint32)
    return tl.where(code == 0, 0x00400000, code << 23).to(tl.float32, bitcast=True)


@triton.jit
def e4m3_value(code):
    """E4M3 bytes (an integer tensor, no NaN) to float32.

    Sign and magnitude, moved to a float32's places, are the value times 2^-120, subnormals included: one exact
    product makes it. It needs a target that keeps subnormal operands, as all of ours do.
    """
    code = code.to(tl.uint32)
    small = (((code & 0x80) << 24) | ((code & 0x7F) << 20)).to(tl.float32, bitcast=True)
    return small * 1.329227995784916e36  # 2^120


@triton.jit
def e2m1_value(code):
    """E2M1 codes 0..15 (an integer tensor) to float32: magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign bit.

    As `e4m3_value`, with 2^-126.
    """
    code = code.to(tl.uint32)
    small = (((code & 8) << 28) | ((code & 7) << 22)).to(tl.float32, bitcast=True)
    return small * 8.507059173023462e37  # 2^126

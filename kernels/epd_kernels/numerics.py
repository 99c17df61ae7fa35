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
    bits = x.to(tl.uint32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def cast(x, dtype: tl.constexpr):
    """Finite float32 to float32 or bfloat16."""
    if dtype == tl.bfloat16:
        return to_bfloat16(x)
    else:
        return x.to(dtype)


@triton.jit
def e4m3_grid(x):
    """The nearest E4M3 value of float32, half to even, at most 448 in magnitude; a cast is exact afterwards."""
    x = tl.minimum(tl.maximum(x, -448.0), 448.0)
    exponent = tl.maximum((tl.abs(x).to(tl.uint32, bitcast=True) >> 23).to(tl.int32) - 127, -6)
    # Adding and taking away 1.5 * 2^23 steps rounds to a whole number of steps.
    magic = ((exponent - 3 + 127) << 23).to(tl.float32, bitcast=True) * 12582912.0
    rounded = (tl.abs(x) + magic) - magic
    return tl.where(x < 0, -rounded, rounded)


@triton.jit
def power_of_two(code):
    """UE8M0 bytes (an integer tensor, 0..254) to float32; byte 0 is 2^-127, which is subnormal."""
    code = code.to(tl.uint32)
    return tl.where(code == 0, 0x00400000, code << 23).to(tl.float32, bitcast=True)


@triton.jit
def e4m3_value(code):
    """E4M3 bytes (an integer tensor, no NaN) to float32, by integer arithmetic: every target and the interpreter agree.

    The seven bits of magnitude, moved to a float32's place, are the value times 2^-120, subnormals included.
    """
    code = code.to(tl.uint32)
    magnitude = ((code & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120
    return tl.where(code >= 0x80, -magnitude, magnitude)


@triton.jit
def e2m1_value(code):
    """E2M1 codes 0..15 (an integer tensor) to float32: magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign bit."""
    code = code.to(tl.uint32)
    magnitude = ((code & 7) << 22).to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126
    return tl.where(code >= 8, -magnitude, magnitude)

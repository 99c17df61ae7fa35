"""Rows to and from the bytes of the cache formats, bit for bit.

Strides of pages and codes come in units of UNIT bytes, from which the compiler sees how wide an access may be.

Every decision that rounding depends on is taken in integers or in exact products, and the one quotient that remains
(a block's largest value by 6) is correctly rounded: a GPU's usual division is not, and one wrong bit in a key changes
which entries are selected.
"""

import triton
import triton.language as tl

from epd_kernels.numerics import cast, e2m1_code, e2m1_value, e4m3_code, e4m3_value, power_of_two


@triton.jit
def _scale_code(amax, FORMAT: tl.constexpr):
    """Scale bytes of blocks with the largest magnitudes `amax`.

    A power of two is ceil(log2(amax / top)), top = 1.75 * 2^8 or 1.5 * 2^2: the exponents' difference, and one more
    where amax's mantissa is larger than top's.
    """
    if FORMAT == "main":
        return e4m3_code(tl.div_rn(tl.maximum(amax, 0.01171875), 6.0))  # 6 * 2^-9
    elif FORMAT == "index":
        bits = tl.maximum(amax, 7.052966104933725e-38).to(tl.uint32, bitcast=True)  # 6 * 2^-126
        return (((bits + 0x3FFFFF) >> 23) - 2).to(tl.uint8)
    else:
        bits = tl.maximum(amax, 1e-4).to(tl.uint32, bitcast=True)
        return (((bits + 0x1FFFFF) >> 23) - 8).to(tl.uint8)


@triton.jit
def _scale_value(code, FORMAT: tl.constexpr):
    if FORMAT == "main":
        return e4m3_value(code)
    else:
        return power_of_two(code)


@triton.jit(do_not_specialize=["count", "page_size", "page_units"], do_not_specialize_on_alignment=["slots"])
def pack_kernel(
    values,
    slots,
    data,
    count,
    value_stride,
    page_size,
    page_units,
    code_units,
    scale_start,
    scale_stride,
    FORMAT: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Encode ROWS rows.

    Writes: program i, and no other, codes and scales of the slots of the rows [i * ROWS, (i + 1) * ROWS) below
    `count`; slots differ.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < count)[:, None] & (column < DIM)[None, :]
    slot = tl.load(slots + row, mask=row < count, other=-1)
    place = values + row.to(tl.int64)[:, None] * value_stride + column[None, :]
    x = tl.load(place, mask=inside, other=0.0).to(tl.float32)

    parts: tl.constexpr = COLUMNS // BLOCK
    blocks = tl.reshape(x, (ROWS * parts, BLOCK))
    scale_code = _scale_code(tl.max(tl.abs(blocks), 1), FORMAT)
    if FORMAT == "window":
        used: tl.constexpr = DIM
        width: tl.constexpr = COLUMNS
        # The exact inverse of the scale.
        codes = e4m3_code(blocks * power_of_two(254 - scale_code.to(tl.int32))[:, None])
    else:
        used: tl.constexpr = DIM // 2
        width: tl.constexpr = COLUMNS // 2
        halves = e2m1_code(blocks, _scale_value(scale_code, FORMAT)[:, None])
        even, odd = tl.split(tl.reshape(halves, (ROWS * parts, BLOCK // 2, 2)))
        codes = even | (odd << 4)

    page = data + (slot // page_size).to(tl.int64) * page_units * UNIT  # pools pass 2^31 bytes
    turn = slot % page_size
    byte = tl.arange(0, width)
    mask = (slot >= 0)[:, None] & (byte < used)[None, :]
    tl.store(
        (page + turn * code_units * UNIT)[:, None] + byte[None, :],
        tl.reshape(codes, (ROWS, width)),
        mask=mask,
    )
    part = tl.arange(0, parts)
    mask = (slot >= 0)[:, None] & (part < DIM // BLOCK)[None, :]
    first = page + scale_start + turn * scale_stride
    tl.store(first[:, None] + part[None, :], tl.reshape(scale_code, (ROWS, parts)), mask=mask)


@triton.jit(do_not_specialize=["count", "page_size", "page_units"], do_not_specialize_on_alignment=["slots"])
def unpack_kernel(
    data,
    slots,
    output,
    count,
    page_size,
    page_units,
    code_units,
    scale_start,
    scale_stride,
    FORMAT: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Decode ROWS rows.

    Writes: program i, and no other, the rows [i * ROWS, (i + 1) * ROWS) below `count` of `output`.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + row, mask=row < count, other=-1)
    page = data + (slot // page_size).to(tl.int64) * page_units * UNIT  # pools pass 2^31 bytes
    turn = slot % page_size

    parts: tl.constexpr = COLUMNS // BLOCK
    part = tl.arange(0, parts)
    mask = (slot >= 0)[:, None] & (part < DIM // BLOCK)[None, :]
    first = page + scale_start + turn * scale_stride
    scale = _scale_value(tl.load(first[:, None] + part[None, :], mask=mask, other=0), FORMAT)
    if FORMAT == "window":
        byte = tl.arange(0, COLUMNS)
        mask = (slot >= 0)[:, None] & (byte < DIM)[None, :]
        x = e4m3_value(tl.load((page + turn * code_units * UNIT)[:, None] + byte[None, :], mask=mask, other=0))
    else:
        byte = tl.arange(0, COLUMNS // 2)
        mask = (slot >= 0)[:, None] & (byte < DIM // 2)[None, :]
        pairs = tl.load((page + turn * code_units * UNIT)[:, None] + byte[None, :], mask=mask, other=0)
        x = tl.join(e2m1_value(pairs & 0xF), e2m1_value(pairs >> 4))
    x = tl.reshape(x, (ROWS, parts, BLOCK)) * scale[:, :, None]

    column = tl.arange(0, COLUMNS)
    inside = (row < count)[:, None] & (column < DIM)[None, :]
    place = output + row.to(tl.int64)[:, None] * DIM + column[None, :]
    tl.store(place, cast(tl.reshape(x, (ROWS, COLUMNS)), output.dtype.element_ty), mask=inside)

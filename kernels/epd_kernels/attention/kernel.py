"""Windowed attention, in Triton: formats are decoded in registers, and one tile of latents serves both products."""

import triton
import triton.language as tl

from epd_kernels.numerics import cast, dot, e2m1_value, e4m3_value, power_of_two

LOWEST = tl.constexpr(-3.4028234663852886e38)
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def load_rows(data, slots, page_size, page_stride, row_stride, start, WIDTH: tl.constexpr):
    """Bytes [N, WIDTH] of the rows at slots [N], from `start` within their pages; zeros for slot -1."""
    present = slots >= 0
    known = tl.where(present, slots, 0)
    # A pool's bytes pass 2^31 long before its slots do.
    offsets = (known // page_size).to(tl.int64) * page_stride + (known % page_size) * row_stride + start
    return tl.load(data + offsets[:, None] + tl.arange(0, WIDTH)[None, :], mask=present[:, None], other=0)


@triton.jit
def window_latents(codes, scales, N: tl.constexpr, DIM: tl.constexpr, TYPE: tl.constexpr):
    """E4M3 codes [N, DIM] with UE8M0 scales [N, DIM / 32] to latents [N, DIM]; bfloat16 holds them exactly."""
    values = e4m3_value(codes).reshape(N, DIM // 32, 32) * power_of_two(scales)[:, :, None]
    return values.reshape(N, DIM).to(TYPE)


@triton.jit
def entry_latents(codes, scales, N: tl.constexpr, DIM: tl.constexpr, TYPE: tl.constexpr):
    """E2M1 pairs [N, DIM / 2] with E4M3 scales [N, DIM / 16] to latents [N, DIM]; bfloat16 holds them exactly."""
    values = tl.join(e2m1_value(codes & 15), e2m1_value(codes >> 4))
    values = values.reshape(N, DIM // 16, 16) * e4m3_value(scales)[:, :, None]
    return values.reshape(N, DIM).to(TYPE)


@triton.jit
def accumulate(query, latents, present, scale, top, total, mixed):
    """Let queries [H, DIM] see latents [N, DIM]: running maximum (base 2) and sum [H], weighted sum [H, DIM]."""
    logits = dot(query, tl.trans(latents)) * scale
    logits = tl.where(present[None, :], logits, float("-inf"))
    higher = tl.maximum(top, tl.max(logits, 1))
    weights = tl.exp2(logits - higher[:, None])
    keep = tl.exp2(top - higher)
    total = total * keep + tl.sum(weights, 1)
    mixed = mixed * keep[:, None] + dot(cast(weights, latents.dtype), latents)
    return higher, total, mixed


@triton.jit(do_not_specialize=["rows"])
def attend_kernel(
    query,  # [R, heads, DIM]
    window,
    slots,  # [R, WINDOW] int32
    entries,
    selected,  # [R, SELECTED] int32
    sink,  # [heads] float32
    output,  # [R, heads, DIM], or float32 [splits, R, heads, DIM]
    lse,  # float32 [R, heads] or [splits, R, heads]
    scale,
    rows,
    heads,
    window_page_size,
    window_page_stride,
    window_code_stride,
    window_scale_stride,
    window_scale_start,
    entry_page_size,
    entry_page_stride,
    entry_code_stride,
    entry_scale_stride,
    entry_scale_start,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SELECTED: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW_STAGES: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """One row, a block of heads, and one split of the keys: the window's tiles, then the selection's.

    Program (r, b, s) alone writes output[s, r, heads of b] and lse[s, r, heads of b]; without SPLIT, s is 0.
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dims = tl.arange(0, DIM)
    keys = tl.arange(0, BLOCK_KEYS)
    inside = head < heads
    asked = tl.load(query + (row * heads + head)[:, None] * DIM + dims[None, :], mask=inside[:, None], other=0.0)
    top = tl.full([BLOCK_HEADS], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_HEADS], tl.float32)
    mixed = tl.zeros([BLOCK_HEADS, DIM], tl.float32)

    window_tiles: tl.constexpr = (WINDOW + BLOCK_KEYS - 1) // BLOCK_KEYS
    tiles: tl.constexpr = window_tiles + (SELECTED + BLOCK_KEYS - 1) // BLOCK_KEYS
    share = (tiles + tl.num_programs(2) - 1) // tl.num_programs(2)
    begin = split * share
    end = tl.minimum(begin + share, tiles)
    # Hoisted out of the loops, the 64 addresses of matrix operands would take the registers that the sums need.
    for tile in tl.range(begin, tl.minimum(end, window_tiles), num_stages=WINDOW_STAGES, disable_licm=True):
        column = tile * BLOCK_KEYS + keys
        place = tl.load(slots + row * WINDOW + column, mask=column < WINDOW, other=-1)
        codes = load_rows(window, place, window_page_size, window_page_stride, window_code_stride, 0, DIM)
        scales = load_rows(
            window,
            place,
            window_page_size,
            window_page_stride,
            window_scale_stride,
            window_scale_start,
            DIM // 32,
        )
        latents = window_latents(codes, scales, BLOCK_KEYS, DIM, asked.dtype)
        top, total, mixed = accumulate(asked, latents, place >= 0, scale * LOG2E, top, total, mixed)
    if SELECTED > 0:
        for tile in tl.range(tl.maximum(begin - window_tiles, 0), end - window_tiles, disable_licm=True):
            column = tile * BLOCK_KEYS + keys
            place = tl.load(selected + row * SELECTED + column, mask=column < SELECTED, other=-1)
            codes = load_rows(entries, place, entry_page_size, entry_page_stride, entry_code_stride, 0, DIM // 2)
            scales = load_rows(
                entries,
                place,
                entry_page_size,
                entry_page_stride,
                entry_scale_stride,
                entry_scale_start,
                DIM // 16,
            )
            latents = entry_latents(codes, scales, BLOCK_KEYS, DIM, asked.dtype)
            top, total, mixed = accumulate(asked, latents, place >= 0, scale * LOG2E, top, total, mixed)

    place = (split * rows + row) * heads + head
    tl.store(lse + place, top * LN2 + tl.log(total), mask=inside)
    if SPLIT:
        total = tl.where(total > 0, total, 1.0)
    else:
        # A row without keys has the lowest maximum, which no sink may lie below: 0 / (0 + 1 or more) is 0.
        total += tl.exp2(tl.maximum(tl.load(sink + head, mask=inside, other=0.0) * LOG2E, LOWEST) - top)
    target = output + place[:, None] * DIM + dims[None, :]
    tl.store(target, cast(mixed / total[:, None], output.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["rows"])
def merge_kernel(
    parts,  # float32 [splits, R, heads, DIM]
    parts_lse,  # float32 [splits, R, heads]
    sink,  # [heads] float32
    output,  # [R, heads, DIM]
    lse,  # float32 [R, heads]
    rows,
    heads,
    splits,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One row and head: the splits' outputs, weighted by their sums, with the sink.

    Program (r, h) alone writes output[r, h] and lse[r, h].
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS)
    dims = tl.arange(0, DIM)
    place = (split * rows + row) * heads + head
    sums = tl.load(parts_lse + place, mask=split < splits, other=float("-inf"))
    # Finite, so that splits without keys give exp(-inf) and not exp(-inf + inf).
    top = tl.maximum(tl.max(sums, 0), LOWEST)
    weights = tl.exp(sums - top)
    total = tl.sum(weights, 0)
    mixed = tl.load(parts + place[:, None] * DIM + dims[None, :], mask=(split < splits)[:, None], other=0.0)
    mixed = tl.sum(mixed * weights[:, None], 0) / (total + tl.exp(tl.load(sink + head) - top))
    here = row * heads + head
    tl.store(output + here * DIM + dims, cast(mixed, output.dtype.element_ty))
    tl.store(lse + here, top + tl.log(total))

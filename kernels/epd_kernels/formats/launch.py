"""Rows to and from the bytes of pools, in Triton."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
import triton

from epd_kernels.architecture import current
from epd_kernels.formats.kernel import pack_kernel, unpack_kernel
from epd_kernels.formats.reference import INDEX, MAIN, WINDOW
from epd_kernels.formats.tiles import TILES
from epd_kernels.launching import Launch, check_shapes
from epd_kernels.paged import Paged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from epd_kernels.formats.reference import Codec
    from epd_kernels.sizes import Sizes

_FLOATS: Final = (torch.float32, torch.bfloat16)


def pack(values: Tensor, pool: Paged, slots: Tensor) -> None:
    """Encode rows of float32 or bfloat16 into a pool of fewer than 2^31 slots, in place: `reference.pack`.

    Raises:
        ValueError: There is no kernel for these values or this format, or they are not a row for each slot.
    """
    for launch in launches_pack(values, pool, slots):
        launch.run()


def launches_pack(values: Tensor, pool: Paged, slots: Tensor) -> list[Launch]:
    """What encodes the rows.

    Raises:
        ValueError: There is no kernel for these values or this format, or they are not a row for each slot.
    """
    rows, options = _tile(pool, values.dtype)
    check_shapes(values=(values, (*slots.shape, pool.dim)))
    values = values if values.stride(1) == 1 else values.contiguous()
    return [
        Launch(
            kernel=pack_kernel,
            grid=(triton.cdiv(len(values), rows),),
            arguments=(values, slots.int().contiguous(), pool.data, len(values), values.stride(0), *_layout(pool)),
            options=options,
            writes=("data",),
        )
    ]


def unpack(pool: Paged, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """Decode rows of a pool of fewer than 2^31 slots to float32 or bfloat16: `reference.unpack`.

    Raises:
        ValueError: There is no kernel for this type or this format.
    """
    output, launches = launches_unpack(pool, slots, dtype)
    for launch in launches:
        launch.run()
    return output


def launches_unpack(pool: Paged, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, list[Launch]]:
    """The result, not yet filled, and what fills it.

    Raises:
        ValueError: There is no kernel for this type or this format.
    """
    rows, options = _tile(pool, dtype)
    output = torch.empty(*slots.shape, pool.dim, dtype=dtype, device=pool.data.device)
    count = slots.numel()
    launch = Launch(
        kernel=unpack_kernel,
        grid=(triton.cdiv(count, rows),),
        arguments=(pool.data, slots.int().contiguous(), output, count, *_layout(pool)),
        options=options,
        writes=("output",),
    )
    return output, [launch]


def warm(sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Launch]]:
    """Every launch that serving can hit: both layouts, and index queries, a page each."""
    formats = ((WINDOW, sizes.head_dim), (MAIN, sizes.head_dim), (INDEX, sizes.index_dim))
    pools = {
        f"{codec.name} {'planar' if planar else 'by row'}": _pool(codec, dim, sizes.page_size, device, planar=planar)
        for codec, dim in formats
        for planar in (True, False)
    }
    pools["index query"] = _pool(INDEX, sizes.index_dim, 1, device, planar=False)
    for name, pool in pools.items():
        values = torch.zeros(1, pool.dim, dtype=torch.bfloat16, device=device)
        slots = torch.zeros(1, dtype=torch.int32, device=device)
        for launch in launches_pack(values, pool, slots):
            yield f"pack {name}", launch
        for launch in launches_unpack(pool, slots, torch.bfloat16)[1]:
            yield f"unpack {name}", launch


def _pool(codec: Codec, dim: int, page_size: int, device: torch.device, *, planar: bool) -> Paged:
    data = torch.zeros(1, page_size * codec.width(dim), dtype=torch.uint8, device=device)
    return Paged(data, page_size, dim, codec, planar)


def _tile(pool: Paged, values: torch.dtype) -> tuple[int, dict[str, Any]]:
    """Rows of a program, and compile-time constants."""
    codec = pool.codec
    if not codec.block:
        raise ValueError(f"the {codec.name} format has no kernel: use the torch operations, or copy its values")
    if values not in _FLOATS:
        raise ValueError(f"values are {values}: kernels take and give float32 and bfloat16; use the torch operations")
    tile = TILES[current()]
    rows, columns = tile.shape(pool.dim)
    return rows, {
        "FORMAT": codec.name,
        "DIM": pool.dim,
        "BLOCK": codec.block,
        "UNIT": _unit(pool),
        "ROWS": rows,
        "COLUMNS": columns,
        "num_warps": tile.warps,
    }


def _unit(pool: Paged) -> int:
    """Bytes that every row's codes begin at a multiple of, as far as an access can use it."""
    return math.gcd(16, pool.page_stride, pool.code_stride)


def _layout(pool: Paged) -> tuple[int, ...]:
    unit = _unit(pool)
    return pool.page_size, pool.page_stride // unit, pool.code_stride // unit, pool.scale_start, pool.scale_stride

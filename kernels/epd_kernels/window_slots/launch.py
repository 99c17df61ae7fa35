"""The page-table walk, in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
import triton

from epd_kernels.architecture import current
from epd_kernels.launching import Launch, check_dense, check_shapes
from epd_kernels.window_slots.kernel import entry_slots_kernel, window_slots_kernel
from epd_kernels.window_slots.reference import Slots
from epd_kernels.window_slots.tiles import TILES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from epd_kernels.sizes import Sizes

_PAGES: Final = (64, 128, 256)  # tokens in a page of the engines that exist
_RATIOS: Final = (1, 2)  # tokens that an entry stands for


def window_slots(
    positions: Tensor, floors: Tensor, requests: Tensor, table: Tensor, *, page_size: int, window: int
) -> Slots:
    """Find the slots of every row's window: `reference.window_slots`.

    Raises:
        ValueError: The table's rows are not dense, or shapes do not fit.
    """
    slots, launches = launches_window_slots(positions, floors, requests, table, page_size=page_size, window=window)
    for launch in launches:
        launch.run()
    return slots


def launches_window_slots(
    positions: Tensor, floors: Tensor, requests: Tensor, table: Tensor, *, page_size: int, window: int
) -> tuple[Slots, list[Launch]]:
    """The result, not yet filled, and what fills it.

    Raises:
        ValueError: The table's rows are not dense, or shapes do not fit.
    """
    check_dense(table, "table")
    count, device = len(positions), positions.device
    check_shapes(floors=(floors, (count,)), requests=(requests, (count,)))
    slots = Slots(
        slots=torch.empty(count, window, dtype=torch.int32, device=device),
        counts=torch.empty(count, dtype=torch.int32, device=device),
    )
    tile = TILES[current()]
    rows, columns = tile.shape(window)
    inputs = (positions.contiguous(), floors.contiguous(), requests.contiguous(), table)
    launch = Launch(
        kernel=window_slots_kernel,
        grid=(triton.cdiv(count, rows), triton.cdiv(window, columns)),
        arguments=(*inputs, slots.slots, slots.counts, count, table.stride(0), table.shape[1]),
        options={
            "PAGE_SIZE": page_size,
            "WINDOW": window,
            "ROWS": rows,
            "COLUMNS": columns,
            "num_warps": tile.warps,
        },
        writes=("slots", "counts"),
    )
    return slots, [launch]


def entry_slots(entries: Tensor, requests: Tensor, table: Tensor, *, page_size: int) -> Tensor:
    """Find the slots of global entries: `reference.entry_slots`.

    Raises:
        ValueError: The table's or the entries' rows are not dense, or shapes do not fit.
    """
    slots, launches = launches_entry_slots(entries, requests, table, page_size=page_size)
    for launch in launches:
        launch.run()
    return slots


def launches_entry_slots(
    entries: Tensor, requests: Tensor, table: Tensor, *, page_size: int
) -> tuple[Tensor, list[Launch]]:
    """The result, not yet filled, and what fills it.

    Raises:
        ValueError: The table's or the entries' rows are not dense, or shapes do not fit.
    """
    check_dense(table, "table")
    check_dense(entries, "entries")
    count, width = entries.shape
    check_shapes(requests=(requests, (count,)))
    slots = torch.empty(count, width, dtype=torch.int32, device=entries.device)
    tile = TILES[current()]
    rows, columns = tile.shape(width)
    inputs = (entries, requests.contiguous(), table)
    strides = (entries.stride(0), table.stride(0), table.shape[1])
    launch = Launch(
        kernel=entry_slots_kernel,
        grid=(triton.cdiv(count, rows), triton.cdiv(width, columns)),
        arguments=(*inputs, slots, count, width, *strides),
        options={"PAGE_SIZE": page_size, "ROWS": rows, "COLUMNS": columns, "num_warps": tile.warps},
        writes=("slots",),
    )
    return slots, [launch]


def warm(sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Launch]]:
    """Every launch that serving can hit: page sizes are compiled in, numbers of rows and pages are not."""
    ones = torch.ones(8, dtype=torch.int32, device=device)
    table = torch.zeros(2, 8, dtype=torch.int32, device=device)
    pages = sorted({*_PAGES, sizes.page_size})
    for page_size in pages:
        _, launches = launches_window_slots(ones, ones, ones, table, page_size=page_size, window=sizes.window)
        for launch in launches:
            yield f"window page {page_size}", launch
    selected = torch.zeros(8, sizes.topk, dtype=torch.int32, device=device)
    for page_size in sorted({page // ratio for page in pages for ratio in _RATIOS}):
        for name, entries in (("entries", selected), ("entry", ones[:, None])):  # those read, the one written
            _, launches = launches_entry_slots(entries, ones, table, page_size=page_size)
            for launch in launches:
                yield f"{name} page {page_size}", launch

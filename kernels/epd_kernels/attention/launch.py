"""Windowed attention over quantised latents, in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
import triton

from epd_kernels.architecture import Architecture, current
from epd_kernels.attention.kernel import attend_kernel, merge_kernel
from epd_kernels.attention.reference import Attended, check
from epd_kernels.attention.tiles import MERGE_WARPS, MOST_SPLITS, TILES
from epd_kernels.formats.reference import MAIN, WINDOW
from epd_kernels.launching import Launch
from epd_kernels.paged import Paged
from epd_kernels.window_slots.reference import Slots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from epd_kernels.sizes import Sizes

_LEAST: Final = 16  # rows and columns of a matrix instruction


def attend(  # noqa: PLR0917 (its order is that of the formula)
    query: Tensor,
    window: Paged,
    slots: Slots,
    entries: Paged | None,
    selected: Tensor | None,
    sink: Tensor,
    *,
    scale: float,
) -> Attended:
    """Attend to window rows and selected entries, with one softmax over both: `reference.attend`.

    Queries are bfloat16 (probabilities are rounded to it before they weigh values) or float32. Each program takes one
    row with many heads, decodes a tile of latents once and uses it as keys and as values. Few rows are split over their
    keys, and a second kernel merges the parts.

    Raises:
        ValueError: Shapes, types or formats that the kernel does not take; names every fault and the way out.
    """
    attended, launches = launches_attend(query, window, slots, entries, selected, sink, scale=scale)
    for launch in launches:
        launch.run()
    return attended


def launches_attend(  # noqa: PLR0917 (as attend)
    query: Tensor,
    window: Paged,
    slots: Slots,
    entries: Paged | None,
    selected: Tensor | None,
    sink: Tensor,
    *,
    scale: float,
    splits: int | None = None,
) -> tuple[Attended, list[Launch]]:
    """The result, not yet filled, and what fills it.

    All but `splits` is as for `attend`; `splits`, at most `MOST_SPLITS`, are of the keys, and None looks them up.

    Raises:
        ValueError: As `attend`.
    """
    check(query, window, slots, entries, selected, sink)
    _check_formats(query, window, entries)
    rows, heads, dim = query.shape
    tile = TILES[current()]
    splits = tile.split(rows) if splits is None else splits
    sink = sink.to(torch.float32).contiguous()
    attended = Attended(torch.empty(query.shape, dtype=query.dtype, device=query.device), sink.new_empty(rows, heads))
    into = attended
    if splits > 1:
        into = Attended(sink.new_empty(splits, rows, heads, dim), sink.new_empty(splits, rows, heads))
    least = 1 if current() is Architecture.INTERPRETER else _LEAST
    block = min(tile.heads, max(least, triton.next_power_of_2(heads)))
    launches = [
        Launch(
            kernel=attend_kernel,
            grid=(rows, triton.cdiv(heads, block), splits),
            arguments=(
                query.contiguous(),
                window.data,
                slots.slots.contiguous(),
                None if entries is None else entries.data,
                None if selected is None else selected.contiguous(),
                sink,
                into.output,
                into.lse,
                scale,
                rows,
                heads,
                *_strides(window),
                *_strides(entries),
            ),
            options={
                "DIM": dim,
                "WINDOW": slots.slots.shape[1],
                "SELECTED": 0 if selected is None else selected.shape[1],
                "SPLIT": splits > 1,
                "WINDOW_STAGES": tile.stages if selected is None else tile.window_stages,
                "BLOCK_HEADS": block,
                "BLOCK_KEYS": tile.keys,
                "num_warps": tile.warps,
                "num_stages": tile.stages,
            },
            writes=("output", "lse"),
        )
    ]
    if splits > 1:
        launches.append(_merge(into, attended, sink))
    return attended, launches


def _merge(parts: Attended, whole: Attended, sink: Tensor) -> Launch:
    """Of partial outputs [splits, R, heads, dim]."""
    splits, rows, heads, dim = parts.output.shape
    return Launch(
        kernel=merge_kernel,
        grid=(rows, heads),
        arguments=(parts.output, parts.lse, sink, whole.output, whole.lse, rows, heads, splits),
        options={"DIM": dim, "SPLITS": MOST_SPLITS, "num_warps": MERGE_WARPS},
        writes=("output", "lse"),
    )


def _strides(pool: Paged | None) -> tuple[int, ...]:
    if pool is None:
        return 0, 0, 0, 0, 0
    return pool.page_size, pool.page_stride, pool.code_stride, pool.scale_stride, pool.scale_start


def _check_formats(query: Tensor, window: Paged, entries: Paged | None) -> None:
    faults = []
    if query.dtype not in {torch.bfloat16, torch.float32}:
        faults.append(f"query is {query.dtype}: the kernel takes torch.bfloat16 and torch.float32")
    if query.shape[-1] & (query.shape[-1] - 1):
        faults.append(f"queries have {query.shape[-1]} values: the kernel takes powers of two")
    if window.codec != WINDOW:
        faults.append(f"window rows are {window.codec.name}: the kernel decodes the window format")
    if entries is not None and entries.codec != MAIN:
        faults.append(f"entries are {entries.codec.name}: the kernel decodes the main format")
    if faults:
        raise ValueError(f"{'; '.join(faults)}; use the torch operations")


def warm(sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Launch]]:
    """Every launch that serving can hit: page sizes and both page layouts share one kernel."""
    rows = 2
    query = torch.zeros(rows, sizes.heads, sizes.head_dim, dtype=torch.bfloat16, device=device)
    sink = torch.zeros(sizes.heads, device=device)
    slots = Slots(
        torch.full((rows, sizes.window), -1, dtype=torch.int32, device=device),
        torch.zeros(rows, dtype=torch.int32, device=device),
    )
    selected = torch.full((rows, sizes.topk), -1, dtype=torch.int32, device=device)
    window, entries = (
        Paged(
            torch.zeros(1, sizes.page_size * codec.width(sizes.head_dim), dtype=torch.uint8, device=device),
            sizes.page_size,
            sizes.head_dim,
            codec,
        )
        for codec in (WINDOW, MAIN)
    )
    variants: tuple[tuple[str, Paged | None, Tensor | None], ...] = (
        ("window", None, None),
        ("window and entries", entries, selected),
    )
    for name, pool, chosen in variants:
        for splits in (1, 2):
            _, launches = launches_attend(
                query, window, slots, pool, chosen, sink, scale=sizes.head_dim**-0.5, splits=splits
            )
            for launch in launches:
                yield f"{name}, {launch.name}, {splits} splits", launch

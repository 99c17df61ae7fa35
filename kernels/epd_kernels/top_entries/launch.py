"""The best entries of each row, in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from epd_kernels.architecture import current
from epd_kernels.launching import Launch, check_dense, check_shapes
from epd_kernels.selection.tiles import TILES
from epd_kernels.top_entries.kernel import top_entries_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from epd_kernels.sizes import Sizes


def top_entries(values: Tensor, *, count: int, candidates: Tensor | None = None, block: int) -> Tensor:
    """Choose the `count` largest values of each row: `reference.top_entries`, of float32 [R, N].

    Raises:
        ValueError: Values are of another type; rows are not dense; candidates are not those of the values.
    """
    entries, launches = launches_top_entries(values, count=count, candidates=candidates, block=block)
    for launch in launches:
        launch.run()
    return entries


def launches_top_entries(
    values: Tensor, *, count: int, candidates: Tensor | None = None, block: int, out: Tensor | None = None
) -> tuple[Tensor, list[Launch]]:
    """The result, not yet filled, and what fills it.

    Args:
        values: float32 [R, N], rows dense.
        count: Entries wanted.
        candidates: i32 [R, N / block], rows dense.
        block: Entries in a candidate block.
        out: Where to write, dense i32 [R, count]; made if not given.

    Raises:
        ValueError: As of `top_entries`.
    """
    rows, columns = values.shape
    check_scores(values, "values")
    if candidates is not None:
        check_dense(candidates, "candidates")
        check_shapes(candidates=(candidates, (rows, triton.cdiv(columns, block))))
    entries = torch.empty(rows, count, dtype=torch.int32, device=values.device) if out is None else out
    tile = TILES[current()]
    launch = Launch(
        kernel=top_entries_kernel,
        grid=(triton.cdiv(rows, tile.rows),),
        arguments=(
            values,
            candidates,
            entries,
            rows,
            columns,
            values.stride(0),
            0 if candidates is None else candidates.stride(0),
        ),
        options={"COUNT": count, "BLOCK": block, "ROWS": tile.rows, "TILE": tile.columns, "num_warps": tile.warps},
        writes=("entries",),
    )
    return entries, [launch]


def check_scores(scores: Tensor, name: str) -> None:
    """See that the kernels which choose can read scores [R, n].

    Raises:
        ValueError: They are not float32, or rows are not dense.
    """
    if scores.dtype != torch.float32:
        raise ValueError(f"{name} are {scores.dtype}: the kernel orders float32; use the torch operations")
    check_dense(scores, name)


def warm(sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Launch]]:
    """Every launch that serving can hit: of all entries and of those in candidate blocks."""
    values = torch.zeros(1, sizes.blocks * sizes.block, device=device)
    blocks = torch.zeros(1, sizes.blocks, dtype=torch.int32, device=device)
    for name, candidates in (("top_entries", None), ("top_entries in candidates", blocks)):
        _, launches = launches_top_entries(values, count=sizes.topk, candidates=candidates, block=sizes.block)
        for launch in launches:
            yield name, launch

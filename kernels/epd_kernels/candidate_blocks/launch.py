"""Candidate blocks, in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from epd_kernels.architecture import current
from epd_kernels.candidate_blocks.kernel import candidate_blocks_kernel
from epd_kernels.launching import Launch, check_shapes
from epd_kernels.selection.tiles import TILES
from epd_kernels.top_entries.launch import check_scores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from epd_kernels.sizes import Sizes


def candidate_blocks(maxima: Tensor, visible: Tensor, *, block: int, count: int) -> Tensor:
    """Choose the `count` best blocks of each row: `reference.candidate_blocks`, of float32 [R, n].

    Raises:
        ValueError: Maxima are of another type or their rows are not dense; rows are not one for each of `visible`.
    """
    blocks, launches = launches_candidate_blocks(maxima, visible, block=block, count=count)
    for launch in launches:
        launch.run()
    return blocks


def launches_candidate_blocks(
    maxima: Tensor, visible: Tensor, *, block: int, count: int, out: Tensor | None = None
) -> tuple[Tensor, list[Launch]]:
    """The result, not yet filled, and what fills it.

    Args:
        maxima: float32 [R, n], rows dense.
        visible: i32 [R].
        block: Entries in a block.
        count: Blocks kept.
        out: Where to write, dense i32 [R, count]; made if not given.

    Raises:
        ValueError: As of `candidate_blocks`.
    """
    rows, columns = maxima.shape
    check_scores(maxima, "maxima")
    check_shapes(visible=(visible, (rows,)))
    blocks = torch.empty(rows, count, dtype=torch.int32, device=maxima.device) if out is None else out
    tile = TILES[current()]
    launch = Launch(
        kernel=candidate_blocks_kernel,
        grid=(triton.cdiv(rows, tile.rows),),
        arguments=(maxima, visible.contiguous(), blocks, rows, columns, maxima.stride(0)),
        options={"COUNT": count, "BLOCK": block, "ROWS": tile.rows, "TILE": tile.columns, "num_warps": tile.warps},
        writes=("blocks",),
    )
    return blocks, [launch]


def warm(sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Launch]]:
    """The launch that serving will hit."""
    maxima = torch.zeros(1, 2 * sizes.blocks, device=device)
    visible = torch.ones(1, dtype=torch.int32, device=device)
    _, launches = launches_candidate_blocks(maxima, visible, block=sizes.block, count=sizes.blocks)
    for launch in launches:
        yield "candidate_blocks", launch

"""Index scores, in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from epd_kernels.architecture import current
from epd_kernels.formats.reference import INDEX
from epd_kernels.index_scores.kernel import index_scores_kernel
from epd_kernels.index_scores.reference import Scores
from epd_kernels.index_scores.tiles import OWN, SHARED
from epd_kernels.launching import Launch, check_dense, check_shapes
from epd_kernels.paged import Paged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from epd_kernels.sizes import Sizes


def index_scores(  # noqa: PLR0917 -- tensors come in the order of every engine's call
    query: Tensor,
    weights: Tensor,
    keys: Paged,
    table: Tensor,
    requests: Tensor,
    visible: Tensor,
    *,
    columns: int,
    block: int,
    candidates: Tensor | None = None,
) -> Scores:
    """Score entries for each row: `reference.index_scores`, with float32 results.

    Raises:
        ValueError: As of `launches_index_scores`.
    """
    scores, launches = launches_index_scores(
        query, weights, keys, table, requests, visible, columns=columns, block=block, candidates=candidates
    )
    for launch in launches:
        launch.run()
    return scores


def launches_index_scores(  # noqa: PLR0917 -- as `index_scores`
    query: Tensor,
    weights: Tensor,
    keys: Paged,
    table: Tensor,
    requests: Tensor,
    visible: Tensor,
    *,
    columns: int,
    block: int,
    candidates: Tensor | None = None,
    out: Scores | None = None,
) -> tuple[Scores, list[Launch]]:
    """The result, not yet filled, and what fills it.

    Args:
        query: As of `reference.index_scores`, like all others.
        weights: Rounded to float32.
        keys: In the index format.
        table: Rows may lie apart.
        requests: Dense.
        visible: Dense.
        columns: As of the reference.
        block: A power of two.
        candidates: Rows may lie apart.
        out: Where to write, dense float32; made if not given.

    Raises:
        ValueError: Names every fault of the formats and sizes, of the shapes, or of the strides.
    """
    architecture = current()
    heads = 1 << max(4, (query.shape[1] - 1).bit_length())  # matrix units take 16 at least
    tile = (SHARED if candidates is None else OWN)[architecture]
    rows = tile.rows(heads) if candidates is None else 1
    _check(query, keys, block, tile.columns)
    width = columns if candidates is None else candidates.shape[1] * block
    scores = out or empty(len(query), width, block, query.device)
    count = len(query)
    check_shapes(weights=(weights, query.shape[:2]), requests=(requests, (count,)), visible=(visible, (count,)))
    check_dense(table, "table")
    if candidates is not None:
        check_shapes(candidates=(candidates, (count, candidates.shape[1])))
        check_dense(candidates, "candidates")
    launch = Launch(
        kernel=index_scores_kernel,
        grid=(triton.cdiv(len(query), rows), triton.cdiv(width, tile.columns * tile.turns)),
        arguments=(
            query.contiguous(),
            weights.to(torch.float32).contiguous(),
            keys.data,
            table,
            requests.contiguous(),
            visible.contiguous(),
            candidates,
            scores.values,
            scores.maxima,
            len(query),
            width,
            table.shape[1],
            keys.page_stride,
            table.stride(0),
            0 if candidates is None else candidates.stride(0),
        ),
        options={
            "HEADS": query.shape[1],
            "H": heads,
            "GROUPS": keys.scale_bytes,
            "PAGE_SIZE": keys.page_size,
            "CODE_STRIDE": keys.code_stride,
            "SCALE_STRIDE": keys.scale_stride,
            "SCALE_START": keys.scale_start,
            "BLOCK": block,
            "ROWS": rows,
            "COLUMNS": tile.columns,
            "TILES": tile.turns,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        },
        writes=("values", "maxima"),
    )
    return scores, [launch]


def empty(rows: int, columns: int, block: int, device: torch.device) -> Scores:
    """Room for scores."""
    return Scores(
        values=torch.empty(rows, columns, dtype=torch.float32, device=device),
        maxima=torch.empty(rows, triton.cdiv(columns, block), dtype=torch.float32, device=device),
    )


def warm(sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Launch]]:
    """Every launch that serving can hit: planar pages of one or two tokens an entry, with and without candidates."""
    ints = torch.ones(16, dtype=torch.int32, device=device)
    query = torch.zeros(16, sizes.index_heads, INDEX.width(sizes.index_dim), dtype=torch.uint8, device=device)
    weights = torch.zeros(16, sizes.index_heads, device=device)
    table = torch.zeros(2, 16, dtype=torch.int32, device=device)
    blocks = torch.zeros(16, sizes.blocks, dtype=torch.int32, device=device)
    for ratio in (1, 2):
        page_size = sizes.page_size // ratio
        data = torch.zeros(1, page_size * INDEX.width(sizes.index_dim), dtype=torch.uint8, device=device)
        keys = Paged(data, page_size, sizes.index_dim, INDEX, planar=True)
        for name, candidates in (("", None), (" in candidates", blocks)):
            columns = table.shape[1] * page_size
            _, launches = launches_index_scores(
                query, weights, keys, table, ints, ints, columns=columns, block=sizes.block, candidates=candidates
            )
            for launch in launches:
                yield f"index_scores page {page_size}{name}", launch


def _check(query: Tensor, keys: Paged, block: int, columns: int) -> None:
    """Refuse what the kernel cannot do.

    Raises:
        ValueError: Names every fault.
    """
    faults = []
    if keys.codec != INDEX:
        faults.append(f"keys are in the {keys.codec.name} format: the kernel reads only FP4; use the torch operations")
    elif query.shape[2] != keys.codec.width(keys.dim):
        faults.append(f"queries are {query.shape[2]} bytes: {keys.dim} values take {keys.codec.width(keys.dim)}")
    elif keys.scale_bytes & (keys.scale_bytes - 1):
        faults.append(f"keys have {keys.dim} values: must be 32 times a power of two")
    if block & (block - 1) or not 0 < block <= columns:
        faults.append(f"blocks have {block} entries: must be a power of two up to {columns}")
    if faults:
        raise ValueError("; ".join(faults))

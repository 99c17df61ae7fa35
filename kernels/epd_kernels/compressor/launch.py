"""Pooling of pairs of tokens, in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from epd_kernels.architecture import current
from epd_kernels.compressor.kernel import pool_pairs_kernel
from epd_kernels.compressor.pairs import Pairs
from epd_kernels.compressor.tiles import TILES
from epd_kernels.launching import Launch, check_shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from epd_kernels.sizes import Sizes


def pool_pairs(  # noqa: PLR0917 - as the reference's
    projected: Tensor,
    starts: Tensor,
    firsts: Tensor,
    pending: Tensor,
    waiting: Tensor,
    norm_weight: Tensor,
    eps: float,
    *,
    capacity: int,
) -> Pairs:
    """Entries of all pairs that a ragged step completes: `reference.pool_pairs`, of float32.

    Raises:
        ValueError: There is no kernel for these projections, or shapes do not fit.
    """
    pairs, launches = launches_pool_pairs(
        projected, starts, firsts, pending, waiting, norm_weight, eps, capacity=capacity
    )
    for launch in launches:
        launch.run()
    return pairs


def launches_pool_pairs(  # noqa: PLR0917 - as the reference's
    projected: Tensor,
    starts: Tensor,
    firsts: Tensor,
    pending: Tensor,
    waiting: Tensor,
    norm_weight: Tensor,
    eps: float,
    *,
    capacity: int,
) -> tuple[Pairs, list[Launch]]:
    """The result, not yet filled, and what fills it.

    Raises:
        ValueError: There is no kernel for these projections, or shapes do not fit.
    """
    if projected.dtype != torch.float32:
        raise ValueError(f"projections are {projected.dtype}: the kernel pools float32; use the torch operations")
    dim, requests, device = projected.shape[-1], len(firsts), projected.device
    check_shapes(
        projected=(projected, (len(projected), 2, dim)),
        starts=(starts, (requests + 1,)),
        pending=(pending, (requests, 2, dim)),
        waiting=(waiting, (requests,)),
        norm_weight=(norm_weight, (dim,)),
    )
    entries, owners = torch.empty(2, capacity, dtype=torch.int32, device=device)
    pairs = Pairs(
        latents=torch.empty(capacity, dim, dtype=torch.float32, device=device),
        entries=entries,
        requests=owners,
        pending=torch.empty(requests, 2, dim, dtype=torch.float32, device=device),
        waiting=torch.empty(requests, dtype=torch.bool, device=device),
    )
    tile = TILES[current()]
    count, columns = tile.shape(dim)
    inputs = (projected, starts, firsts, pending, waiting.view(torch.int8), norm_weight)
    outputs = (pairs.latents, entries, owners, pairs.pending, pairs.waiting.view(torch.int8))
    launch = Launch(
        kernel=pool_pairs_kernel,
        grid=(triton.cdiv(capacity, count) + requests,),
        arguments=(*(tensor.contiguous() for tensor in inputs), *outputs, requests, capacity, eps),
        options={
            "DIM": dim,
            "ENTRIES": count,
            "COLUMNS": columns,
            "SEARCHED": tile.requests,
            "num_warps": tile.warps,
        },
        writes=("latents", "entries", "owners", "left", "left_waiting"),
    )
    return pairs, [launch]


def warm(sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Launch]]:
    """The one launch that serving can hit."""
    projected = torch.zeros(1, 2, sizes.head_dim, device=device)
    one = torch.zeros(1, dtype=torch.int32, device=device)
    starts = torch.arange(2, dtype=torch.int32, device=device)
    waiting = torch.ones(1, dtype=torch.bool, device=device)
    weight = torch.ones(sizes.head_dim, device=device)
    _, launches = launches_pool_pairs(projected, starts, one + 1, projected, waiting, weight, 1e-20, capacity=1)
    for launch in launches:
        yield "pool_pairs", launch

"""The layout of a step's tails, in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from epd_kernels.architecture import current
from epd_kernels.launching import Launch, check_shapes
from epd_kernels.tail_layout.kernel import tail_layout_kernel
from epd_kernels.tail_layout.policy import Policy
from epd_kernels.tail_layout.reference import Layout
from epd_kernels.tail_layout.tiles import TILES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from epd_kernels.sizes import Sizes


def tail_layout(
    extends: Tensor, lengths: Tensor, bases: Tensor, whole: Tensor, *, window: int, policy: Policy, capacity: int
) -> Layout:
    """Lay out the last rows of every request: `reference.tail_layout` in one launch, whatever the batch.

    Raises:
        ValueError: Requests are more in one tensor than in another.
    """
    layout, launches = launches_tail_layout(
        extends, lengths, bases, whole, window=window, policy=policy, capacity=capacity
    )
    for launch in launches:
        launch.run()
    return layout


def launches_tail_layout(
    extends: Tensor, lengths: Tensor, bases: Tensor, whole: Tensor, *, window: int, policy: Policy, capacity: int
) -> tuple[Layout, list[Launch]]:
    """The result, not yet filled, and what fills it.

    Raises:
        ValueError: As of `tail_layout`.
    """
    device, batch = extends.device, len(extends)
    check_shapes(lengths=(lengths, (batch,)), bases=(bases, (batch,)), whole=(whole, (batch,)))

    def places(dtype: torch.dtype) -> Tensor:
        return torch.empty(capacity, dtype=dtype, device=device)

    layout = Layout(
        rows=places(torch.int64),
        positions=places(torch.int32),
        floors=places(torch.int32),
        requests=places(torch.int32),
        starts=torch.empty(batch + 1, dtype=torch.int32, device=device),
    )
    tile = TILES[current()]
    inputs = (extends.contiguous(), lengths.contiguous(), bases.contiguous(), whole.contiguous().view(torch.uint8))
    outputs = (layout.rows, layout.positions, layout.floors, layout.requests, layout.starts)
    launch = Launch(
        kernel=tail_layout_kernel,
        grid=(max(1, triton.cdiv(capacity, tile.rows)),),
        arguments=(*inputs, *outputs, batch, capacity, window),
        options={
            "FLOOR_AT_TAIL": policy is Policy.TAIL,
            "ROWS": tile.rows,
            "REQUESTS": tile.requests,
            "num_warps": tile.warps,
        },
        writes=("rows", "positions", "floors", "requests", "starts"),
    )
    return layout, [launch]


def warm(sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Launch]]:
    """Every launch that serving can hit: one for each policy, since no size is compiled in."""
    ones = torch.ones(8, dtype=torch.int32, device=device)
    for policy in Policy:
        _, launches = launches_tail_layout(
            ones, ones, ones - 1, ones > 0, window=sizes.window, policy=policy, capacity=len(ones)
        )
        for launch in launches:
            yield f"floor {policy.value}", launch

"""Kernels see pointers alone: launchers refuse tensors that they would read past, or in the wrong order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from epd_kernels import dispatch
from epd_kernels.formats.reference import INDEX, WINDOW
from epd_kernels.paged import Paged
from epd_kernels.tail_layout.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

TORCH, TRITON = dispatch.TORCH, dispatch.load("triton", torch.device("cpu"))


def ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


WINDOWS = Paged(torch.zeros(2, 4 * WINDOW.width(64), dtype=torch.uint8), 4, 64, WINDOW)
KEYS = Paged(torch.zeros(2, 4 * INDEX.width(64), dtype=torch.uint8), 4, 64, INDEX)

CALLS: dict[str, tuple[Callable[..., object], dict[str, Tensor]]] = {
    "tail_layout": (
        partial(TRITON.tail_layout, ints(3), window=4, policy=Policy.TAIL, capacity=2),
        {"lengths": ints(3), "bases": ints(3), "whole": torch.zeros(3, dtype=torch.bool)},
    ),
    "window_slots": (
        partial(TRITON.window_slots, ints(3), table=ints(1, 2), page_size=4, window=2),
        {"floors": ints(3), "requests": ints(3)},
    ),
    "entry_slots": (partial(TRITON.entry_slots, ints(3, 2), table=ints(1, 2), page_size=4), {"requests": ints(3)}),
    "pack": (
        partial(TRITON.pack, pool=WINDOWS, slots=torch.tensor([0, 5, -1])),
        {"values": torch.zeros(3, 64)},
    ),
    "pool_pairs": (
        partial(TRITON.pool_pairs, torch.zeros(2, 2, 8), firsts=ints(3), eps=1e-6, capacity=2),
        {
            "starts": ints(4),
            "pending": torch.zeros(3, 2, 8),
            "waiting": torch.zeros(3, dtype=torch.bool),
            "norm_weight": torch.zeros(8),
        },
    ),
    "index_scores": (
        partial(TRITON.index_scores, ints(3, 2, 34).byte(), keys=KEYS, table=ints(1, 2), columns=8, block=4),
        {
            "weights": torch.zeros(3, 2),
            "requests": ints(3),
            "visible": ints(3),
            "candidates": ints(3, 2),
        },
    ),
    "top_entries": (
        partial(TRITON.top_entries, torch.zeros(3, 8), count=2, block=4),
        {"candidates": ints(3, 2)},
    ),
    "candidate_blocks": (
        partial(TRITON.candidate_blocks, torch.zeros(3, 8), block=4, count=2),
        {"visible": ints(3)},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_tensor_that_is_too_short_is_refused(name: str) -> None:
    call, given = CALLS[name]
    call(**given)
    for short, tensor in given.items():
        with pytest.raises(ValueError, match=rf"{short} is .*: must be "):
            call(**given | {short: tensor[:-1]})


@pytest.mark.parametrize(
    ("name", "part"), [("pack", "values"), ("pool_pairs", "pending"), ("top_entries", "candidates")]
)
def test_rows_that_are_too_narrow_are_refused(name: str, part: str) -> None:
    call, given = CALLS[name]
    with pytest.raises(ValueError, match=rf"{part} is .*: must be "):
        call(**given | {part: given[part][..., :-1]})


def test_scores_in_another_order_are_refused() -> None:
    scores = torch.randn(8, 8)
    for strided in (scores.t(), scores[:, ::2]):
        with pytest.raises(ValueError, match=r"values has strides .* must be dense"):
            TRITON.top_entries(strided, count=2, block=4)
        with pytest.raises(ValueError, match=r"maxima has strides .* must be dense"):
            TRITON.candidate_blocks(strided, ints(8), count=2, block=4)
    with pytest.raises(ValueError, match=r"candidates has strides .* must be dense"):
        TRITON.top_entries(scores, candidates=ints(2, 8).t(), count=2, block=4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_scores_of_another_type_are_refused(dtype: torch.dtype) -> None:
    scores = torch.randn(3, 8, dtype=dtype)
    with pytest.raises(ValueError, match=f"values are {dtype}: the kernel orders float32; use the torch operations"):
        TRITON.top_entries(scores, count=2, block=4)
    with pytest.raises(ValueError, match=f"maxima are {dtype}: the kernel orders float32"):
        TRITON.candidate_blocks(scores, ints(3), count=2, block=4)


def test_numbers_that_lie_apart_are_read_as_they_are() -> None:
    visible = torch.arange(12, dtype=torch.int32)[::2] * 5
    given: dict[str, Any] = {"block": 4, "count": 3}
    maxima = torch.randn(6, 16)
    assert torch.equal(
        TRITON.candidate_blocks(maxima, visible, **given), TORCH.candidate_blocks(maxima, visible, **given)
    )

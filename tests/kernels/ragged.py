"""Ragged batches for the tests of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hypothesis import strategies as st

from tests.kernels.oracle_tail_layout import Part

if TYPE_CHECKING:
    from torch import Tensor


def ints(values: list[int]) -> Tensor:
    """As the kernels take them."""
    return torch.tensor(values, dtype=torch.int32)


def tensors(parts: list[Part]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Extends, lengths, bases and flags."""
    return (
        ints([part.extend for part in parts]),
        ints([part.length for part in parts]),
        ints([part.base for part in parts]),
        torch.tensor([part.whole for part in parts], dtype=torch.bool),
    )


def extends(window: int) -> st.SearchStrategy[int]:
    """Rows of a request in a step: around nothing, one row and the window."""
    edges = st.sampled_from([0, 1, window - 1, window, window + 1, 2 * window + 3])
    return edges | st.integers(0, 3 * window)


@st.composite
def parts_of(draw: st.DrawFn, window: int, most: int) -> list[Part]:
    """A step's requests: prefills, later chunks, decodes, replays, and requests without a row."""
    parts = []
    for _ in range(draw(st.integers(0, most))):
        before = draw(st.sampled_from([0, 1, window - 1, window, window + 1]) | st.integers(0, 4 * window))
        kind = draw(st.sampled_from(["prefill", "whole", "decode", "replay"]))
        extend = 1 if kind == "decode" else draw(extends(window))
        base = before if kind == "replay" else 0
        parts.append(Part(extend, before + extend, base, kind in {"whole", "decode"}))
    return parts


def tail_rows(parts: list[Part], window: int) -> int:
    """How many rows the tails have."""
    return sum(part.extend if part.whole else min(part.extend, window) for part in parts)

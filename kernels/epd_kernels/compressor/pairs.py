"""What pooling pairs of tokens gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Pairs:
    """Latents of the pairs that a step completes, and what it leaves unpaired.

    Attributes:
        latents: [E, dim], normalised, in the dtype of the projections; zeros behind the last pair.
        entries: [E] int32, each pair's number in its sequence (of tokens 2j and 2j + 1: j); -1 behind the last pair.
        requests: [E] int32, whose it is; -1 behind the last pair.
        pending: [B, 2, dim] float32, content and gate of each request's unpaired last token; zeros where it has none.
        waiting: [B] bool, whether a request has one.
    """

    latents: Tensor
    entries: Tensor
    requests: Tensor
    pending: Tensor
    waiting: Tensor

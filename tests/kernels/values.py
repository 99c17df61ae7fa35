"""Values that the tests of formats and of the shared arithmetic go through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def finite_bfloat16() -> Tensor:
    """All finite bfloat16 values as float32."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).float()
    return every[every.isfinite()]

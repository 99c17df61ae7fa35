"""RMSNorm."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight over the last dimension, in the input's precision (float32 or wider)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    @override
    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] to [..., dim]."""
        return x * inverse_rms(x, self.eps) * self.weight


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """(mean(x²) + eps)^(-1/2) over the last dimension, which is kept with size 1."""
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)

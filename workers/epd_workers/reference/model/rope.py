"""Rotary positions: pairs of neighbours in the last dimensions, with YaRN where layers have a global branch.

Source: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a: base 10000 without scaling for window-only layers,
base 160000 with YaRN for queries, window entries and global entries of all others, no scaling of the softmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from epd_workers.reference.model.config import RopeScaling, TextConfig


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines of some rows' positions, [..., rope_dim / 2] each."""

    cos: Tensor
    sin: Tensor

    def apply(self, x: Tensor, *, heads: bool = False, inverse: bool = False) -> Tensor:
        """Rotate the last `rope_dim` values of each row.

        Args:
            x: [..., dim], or [..., heads, dim]; the rotations may lack leading dimensions.
            heads: Whether x has a dimension of heads.
            inverse: Rotate back.
        """
        dim = 2 * self.cos.shape[-1]
        cos, sin = (self.cos[..., None, :], self.sin[..., None, :]) if heads else (self.cos, self.sin)
        sin = -sin if inverse else sin
        plain, tail = x[..., :-dim], x[..., -dim:]
        even, odd = tail[..., 0::2], tail[..., 1::2]
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
        return torch.cat((plain, turned), -1)

    def __getitem__(self, rows: slice | Tensor) -> Rotation:
        return Rotation(self.cos[rows], self.sin[rows])


def frequencies(dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Angle per position of each of the dim / 2 pairs, float64.

    With YaRN: f ← f (1 - t) + f / factor · t, t = clip((i - low) / (high - low), 0, 1), low and high being the pairs
    that turn beta_fast and beta_slow times within the original context.
    """
    pairs = torch.arange(dim // 2, dtype=torch.float64)
    plain = theta ** (-2 * pairs / dim)
    if scaling is None:
        return plain

    def pair(turns: float) -> float:
        context = scaling.original_max_position_embeddings
        return dim * math.log(context / (2 * math.pi * turns)) / (2 * math.log(theta))

    low = max(math.floor(pair(scaling.beta_fast)), 0)
    high = min(math.ceil(pair(scaling.beta_slow)), dim - 1)
    ramp = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain * (1 - ramp) + plain / scaling.factor * ramp


def layer_frequencies(text: TextConfig, ratio: int) -> Tensor:
    """The frequencies of a layer with this compression ratio (0: window only)."""
    if ratio == 0:
        return frequencies(text.qk_rope_head_dim, text.rope_theta, None)
    return frequencies(text.qk_rope_head_dim, text.compress_rope_theta, text.rope_scaling)


def rotation(positions: Tensor, frequency: Tensor, dtype: torch.dtype) -> Rotation:
    """Rotations [...] integer positions; angles are computed in float64."""
    angles = positions.to(torch.float64)[..., None] * frequency
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))

"""The global entry of a token or a pair of tokens (compressed sparse attention, owners of global KV only).

Source: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a. Ratio 2: tokens (2j, 2j+1) are mixed channel by
channel with a softmax over their two gates; no overlap with neighbours, no positional bias. Ratio 1: a projection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from epd_workers.reference.model.norm import RMSNorm

if TYPE_CHECKING:
    from epd_workers.reference.model.config import TextConfig


class Compressor(nn.Module):
    """Latents of global entries, before position and quantisation."""

    def __init__(self, text: TextConfig, ratio: int) -> None:
        super().__init__()
        self.wkv = nn.Linear(text.hidden_size, text.head_dim, bias=False)
        self.norm = RMSNorm(text.head_dim, text.rms_norm_eps)
        if ratio > 1:
            self.wgate = nn.Linear(text.hidden_size, text.head_dim, bias=False)

    def project(self, x: Tensor) -> Tensor:
        """Content and gate of each token, [..., 2, head_dim] (ratio 2).

        Rounded to float32, as which an unpaired last token is kept: a pair then gives the same entry whether or not a
        chunk ended inside it.
        """
        both = torch.stack((self.wkv(x), self.wgate(x)), -2)
        return both.float().to(both.dtype) if both.dtype == torch.float64 else both

    def pool(self, pairs: Tensor) -> Tensor:
        """Latents [..., head_dim] of [..., 2 tokens, 2 (content, gate), head_dim]."""
        content, gate = pairs[..., 0, :], pairs[..., 1, :]
        pooled: Tensor = self.norm((content * gate.softmax(-2)).sum(-2))
        return pooled

    def latent(self, x: Tensor) -> Tensor:
        """Latents [..., head_dim] of tokens [..., d] (ratio 1)."""
        latent: Tensor = self.norm(self.wkv(x))
        return latent

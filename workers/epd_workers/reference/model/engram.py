"""Engram: a gated table of n-gram rows added to the residual streams before a layer's attention.

Sources: DeepSeek-V4.1-Flash inference/model.py, revision dba1be0a; SGLang 0.5.23, layers/engram.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import nn
from typing_extensions import override

from epd_workers.reference.model.norm import inverse_rms

if TYPE_CHECKING:
    from torch import Tensor

    from epd_workers.reference.model.config import TextConfig

_SMALLEST: Final = 1e-6  # below it the gate's slope would grow without bound


class EngramTable(nn.Module):
    """The rows of one layer; every column (n-gram order, head) owns a section."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, width))

    @override
    def forward(self, indices: Tensor) -> Tensor:
        """Rows [..., columns, width] of indices [..., columns]."""
        return nn.functional.embedding(indices, self.weight)


class Engram(nn.Module):
    """One layer's memory.

    The rows go through `wkv` to one key per stream and one value that all streams share. For stream k:
    dot = sum(R_k q_k w_k key_k) rstd(R_k) rstd(key_k) / sqrt(d), gate = sigmoid(sign(dot) sqrt(max(|dot|, 1e-6))),
    R_k += gate value. At image positions the gate is 0.
    """

    def __init__(self, config: TextConfig, layer: int) -> None:
        super().__init__()
        rows = config.engram_num_embeddings[config.engram_layer_ids.index(layer)]
        columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
        streams, width = config.hc_mult, config.hidden_size
        self._eps = config.rms_norm_eps
        self.embed = EngramTable(rows, config.engram_head_dim)
        self.wkv = nn.Linear(columns * config.engram_head_dim, (streams + 1) * width, bias=False)
        self.q_weight = nn.Parameter(torch.ones(streams, width))
        self.k_weight = nn.Parameter(torch.ones(streams, width))

    @override
    def forward(self, streams: Tensor, indices: Tensor, image: Tensor) -> Tensor:
        """Add the memory.

        Args:
            streams: [..., k, d] float.
            indices: Rows to read [..., columns] int64, of `EngramHash`.
            image: Whether a position belongs to an image [...] bool.

        Returns:
            [..., k, d], the dtype of `streams`.
        """
        count, width = streams.shape[-2:]
        projected: Tensor = self.wkv(self.embed(indices).flatten(-2)).unflatten(-1, (count + 1, width))
        keys, value = projected[..., :count, :], projected[..., count:, :]
        weight = self.q_weight * self.k_weight
        sizes = (inverse_rms(streams, self._eps) * inverse_rms(keys, self._eps)).squeeze(-1)
        dot = (streams * weight * keys).sum(-1) * sizes * width**-0.5
        gate = torch.sigmoid(torch.sign(dot) * dot.abs().clamp(min=_SMALLEST).sqrt())
        return streams + gate.masked_fill(image[..., None], 0)[..., None] * value

"""Shared-latent attention: one latent a token is key and value of all heads, seen through a window and a selection.

Source: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a. Keys of a query at p: the latents of positions
p-127..p and the selected global entries, concatenated without removing overlaps; per head a sink in the denominator
that has no value; the output is rotated back by the query's position, because the value carries its key's rotation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from typing_extensions import override

from epd_workers.reference.model.compressor import Compressor
from epd_workers.reference.model.indexer import Indexer
from epd_workers.reference.model.norm import RMSNorm

if TYPE_CHECKING:
    from epd_workers.reference.model.config import LayerPlan, TextConfig
    from epd_workers.reference.model.rope import Rotation


class Grouped(nn.Module):
    """The first half of the output projection: each group of heads through its own matrix."""

    def __init__(self, text: TextConfig) -> None:
        super().__init__()
        self.groups = text.o_groups
        wide = text.num_attention_heads * text.head_dim // text.o_groups
        self.weight = nn.Parameter(torch.zeros(text.o_groups * text.o_lora_rank, wide))

    @override
    def forward(self, heads: Tensor) -> Tensor:
        """[..., heads * head_dim] to [..., groups * o_lora_rank]."""
        parts = heads.unflatten(-1, (self.groups, -1))
        mats = self.weight.unflatten(0, (self.groups, -1))
        return torch.einsum("...gi,goi->...go", parts, mats).flatten(-2)


class Attention(nn.Module):
    """The projections of one layer's attention; what is attended to is the caller's business."""

    def __init__(self, text: TextConfig, plan: LayerPlan) -> None:
        super().__init__()
        self.heads, self.dim = text.num_attention_heads, text.head_dim
        self.wq_a = nn.Linear(text.hidden_size, text.q_lora_rank, bias=False)
        self.q_norm = RMSNorm(text.q_lora_rank, text.rms_norm_eps)
        self.wq_b = nn.Linear(text.q_lora_rank, self.heads * self.dim, bias=False)
        self.wkv = nn.Linear(text.hidden_size, self.dim, bias=False)
        self.kv_norm = RMSNorm(self.dim, text.rms_norm_eps)
        self.attn_sink = nn.Parameter(torch.zeros(self.heads))
        self.wo_a = Grouped(text)
        self.wo_b = nn.Linear(text.o_groups * text.o_lora_rank, text.hidden_size, bias=False)
        self.compressor = Compressor(text, plan.ratio) if plan.owns_kv else None
        self.indexer = Indexer(text, plan) if plan.owns_index else None

    def query_latent(self, x: Tensor) -> Tensor:
        """[..., d] to [..., q_lora_rank]; the indexer starts from it, too."""
        latent: Tensor = self.q_norm(self.wq_a(x))
        return latent

    def query(self, latent: Tensor, rotation: Rotation) -> Tensor:
        """[..., q_lora_rank] to rotated queries [..., heads, head_dim]."""
        return rotation.apply(self.wq_b(latent).unflatten(-1, (self.heads, self.dim)), heads=True)

    def entry(self, x: Tensor, rotation: Rotation) -> Tensor:
        """Window latents [..., head_dim] of rows [..., d], rotated, not yet quantised."""
        return rotation.apply(self.kv_norm(self.wkv(x)))

    def output(self, mixed: Tensor, rotation: Rotation) -> Tensor:
        """Mixed values [..., heads, head_dim] to the sublayer's output [..., d]."""
        out: Tensor = self.wo_b(self.wo_a(rotation.apply(mixed, heads=True, inverse=True).flatten(-2)))
        return out


def attend(query: Tensor, keys: Tensor, seen: Tensor, sink: Tensor) -> Tensor:
    """One softmax over keys that all heads share and a sink without value; differentiable, over no cache.

    Args:
        query: [batch, rows, heads, dim].
        keys: [batch, n, dim], also the values.
        seen: Which row sees which key, [batch, rows, n].
        sink: [heads].

    Returns:
        [batch, rows, heads, dim]; zero where nothing is seen.
    """
    batch, rows, heads, dim = query.shape
    logits = (query.flatten(1, 2) * dim**-0.5) @ keys.transpose(1, 2)
    logits = logits.unflatten(1, (rows, heads)).masked_fill_(~seen[:, :, None], float("-inf"))
    weights = torch.cat((logits, sink[:, None].expand(batch, rows, -1, -1)), -1).softmax(-1)
    mixed: Tensor = (weights[..., :-1].flatten(1, 2) @ keys).unflatten(1, (rows, heads))
    return mixed

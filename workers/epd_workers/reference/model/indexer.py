"""Which global entries a query attends to: exact scores over all visible entries, then the best `index_topk`.

The tricky idea: one small query per index head is scored against one shared key per entry; layers between two index
sources reuse the selection, and `Reindex` layers score again, but only inside the candidate source's blocks.

Source: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from epd_workers.reference.model.norm import RMSNorm

if TYPE_CHECKING:
    from epd_workers.reference.model.config import LayerPlan, TextConfig
    from epd_workers.reference.model.rope import Rotation


class Indexer(nn.Module):
    """Index queries (every index source) and index keys (owners of global KV)."""

    def __init__(self, text: TextConfig, plan: LayerPlan) -> None:
        super().__init__()
        self.heads, self.dim = text.index_n_heads, text.index_head_dim
        self.wq_b = nn.Linear(text.q_lora_rank, self.heads * self.dim, bias=False)
        self.weights_proj = nn.Linear(text.hidden_size, self.heads, bias=False)
        if plan.owns_kv:
            self.wk = nn.Linear(text.head_dim, self.dim, bias=False)
            self.k_norm = RMSNorm(self.dim, text.rms_norm_eps)

    def query(self, latent: Tensor, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Index queries [..., heads, dim] (not yet quantised) and the heads' weights [..., heads].

        Args:
            latent: The attention's query latent, [..., q_lora_rank].
            x: The sublayer's input, [..., d].
            rotation: Of the rows' positions.
        """
        query = rotation.apply(self.wq_b(latent).unflatten(-1, (self.heads, self.dim)), heads=True)
        return query, self.weights_proj(x) * (self.dim * self.heads) ** -0.5

    def key(self, latent: Tensor, rotation: Rotation) -> Tensor:
        """Index keys [..., dim] (not yet quantised) of the compressor's latents [..., head_dim]."""
        return rotation.apply(self.k_norm(self.wk(latent)))


def scores(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Σ_h w_h max(0, q_h · k_j), differentiable, over no cache.

    Args:
        query: [..., rows, heads, dim].
        weights: [..., rows, heads].
        keys: [..., entries, dim].

    Returns:
        [..., rows, entries].
    """
    rows, heads = query.shape[-3:-1]
    dots = torch.relu(query.flatten(-3, -2) @ keys.transpose(-1, -2)).unflatten(-2, (rows, heads))
    result: Tensor = (weights[..., None, :] @ dots).squeeze(-2)
    return result

"""Which global entries a query attends to: exact scores over all visible entries, then the best `index_topk`.

The tricky idea: one small query per index head is scored against one shared key per entry; layers between two index
sources reuse the selection, and `Reindex` layers score anew but only inside the blocks that the candidate source found.

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

NEVER = float("-inf")


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
    """Σ_h w_h max(0, q_h · k_j).

    Args:
        query: [..., rows, heads, dim].
        weights: [..., rows, heads].
        keys: [..., entries, dim].

    Returns:
        [..., rows, entries].
    """
    rows, heads = query.shape[-3:-1]
    dots = torch.relu(query.flatten(-3, -2) @ keys.transpose(-1, -2)).unflatten(-2, (rows, heads))
    found: Tensor = (weights[..., None, :] @ dots).squeeze(-2)
    return found


def keep_best(values: Tensor, count: int) -> Tensor:
    """Mask of the `count` largest finite values of each row [..., n]; of equal ones at the edge, the first."""
    finite = values > NEVER
    if values.shape[-1] <= count:
        return finite
    edge = values.topk(count, -1).values[..., -1:]
    above, level = values > edge, (values == edge) & finite
    wanted = count - above.sum(-1, keepdim=True)
    return above | (level & (level.cumsum(-1) <= wanted))


def candidates(values: Tensor, visible: Tensor, block: int, count: int) -> Tensor:
    """Mask [..., n] of the entries in the best `count` blocks of `block`; the block of the newest is always in.

    Args:
        values: Scores [..., n], -inf where an entry is not visible.
        visible: Entries each row sees, [...].
        block: Entries per block.
        count: Blocks kept.
    """
    n = values.shape[-1]
    blocks = -(-n // block)
    padded = nn.functional.pad(values, (0, blocks * block - n), value=NEVER)
    best = padded.unflatten(-1, (blocks, block)).amax(-1)
    newest = torch.arange(blocks) == ((visible - 1).clamp(min=0) // block)[..., None]
    best = torch.where(newest & (visible > 0)[..., None], float("inf"), best)
    return keep_best(best, count).repeat_interleave(block, -1)[..., :n]


def positions_of(mask: Tensor, count: int) -> Tensor:
    """Indices of the set places of each row [rows, n], rising, padded with -1 to `count` columns."""
    rows, places = mask.nonzero(as_tuple=True)
    column = (mask.cumsum(-1) - 1)[rows, places]
    found = torch.full((len(mask), count), -1, dtype=torch.int64)
    found[rows, column] = places
    return found

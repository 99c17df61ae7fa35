"""Vision tower and aligner: from the patches of a picture to the rows that stand for it in the prompt.

patches [n, 3 p²] → linear → blocks of x + attention(norm x), x + MLP(norm x) → norm → r x r cells joined → linear →
GELU → linear → rows of the decoder's width. Parameter names are the released ones: `wqkv` stacks the query, key and
value projections, `mlp.w1` the gate above the up projection.

Source: SGLang 0.5.23, models/deepseek_v41_vit.py; the stored names are those that models/deepseek_v4.py renames for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from epd_workers.reference.model.norm import RMSNorm
from epd_workers.reference.model.rope import frequencies

if TYPE_CHECKING:
    from epd_workers.reference.model.config import VisionConfig

EPS = 1e-6


class PatchEmbed(nn.Module):
    """A linear map of every patch, with bias."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(3 * config.patch_size**2, config.hidden_size)

    @override
    def forward(self, patches: Tensor) -> Tensor:
        """[..., 3 p²], ordered channel, line, column, to [..., hidden]."""
        out: Tensor = self.proj(patches)
        return out


class Attention(nn.Module):
    """Every patch sees every patch of its own picture: softmax(q kᵀ / sqrt(head)) v, queries and keys rotated."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.wqkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.wo = nn.Linear(config.hidden_size, config.hidden_size)

    @override
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, n, hidden] to the same; cos and sin [n, head / 2]."""
        query, key, value = self.wqkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.wo(mixed.transpose(1, 2).flatten(-2))
        return out


class MLP(nn.Module):
    """w2 (silu(gate x) * up x) without biases; w1 is gate above up."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to the same."""
        gate, up = self.w1(x).chunk(2, dim=-1)
        out: Tensor = self.w2(functional.silu(gate) * up)
        return out


class Block(nn.Module):
    """Attention, then MLP, each behind its norm and added to its input."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.hidden_size, EPS)
        self.attn = Attention(config)
        self.norm2 = RMSNorm(config.hidden_size, EPS)
        self.mlp = MLP(config)

    @override
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, n, hidden] to the same."""
        x = x + self.attn(self.norm1(x), cos, sin)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Vision(nn.Module):
    """The tower: patches of B pictures of one grid to one row per patch."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self._rotated = config.hidden_size // config.num_attention_heads // 2
        self._theta = config.rope_theta
        self.patch_embed = PatchEmbed(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, EPS)

    @override
    def forward(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """Encode pictures.

        Args:
            patches: [B, high * wide, 3 p²], line by line, each ordered channel, line, column.
            grid: (high, wide), in patches.

        Returns:
            [B, high * wide, hidden].

        Raises:
            ValueError: The number of patches is not that of the grid.
        """
        _check(patches, grid)
        x = self.patch_embed(patches)
        angles = grid_angles(grid, self._rotated, self._theta)
        cos, sin = (t.to(x.device, x.dtype) for t in (angles.cos(), angles.sin()))
        for block in self.blocks:
            x = block(x, cos, sin)
        out: Tensor = self.norm(x)
        return out


class Aligner(nn.Module):
    """w2 gelu(w1 cell): r x r neighbouring rows of the tower become one row of the decoder's width.

    A grid that is not a multiple of r is extended with zero rows below and to the right. A cell is ordered channel,
    line, column; GELU is the exact one.
    """

    def __init__(self, config: VisionConfig, hidden: int) -> None:
        super().__init__()
        self.ratio = config.downsample_ratio
        self.w1 = nn.Linear(config.hidden_size * self.ratio**2, hidden)
        self.w2 = nn.Linear(hidden, hidden)

    @override
    def forward(self, rows: Tensor, grid: tuple[int, int]) -> Tensor:
        """Join cells.

        Args:
            rows: [B, high * wide, vision hidden].
            grid: (high, wide), in patches.

        Returns:
            [B, ceil(high / r) * ceil(wide / r), hidden], line by line.

        Raises:
            ValueError: The number of rows is not that of the grid.
        """
        _check(rows, grid)
        high, wide = grid
        picture = rows.transpose(1, 2).reshape(len(rows), -1, high, wide)
        picture = functional.pad(picture, (0, -wide % self.ratio, 0, -high % self.ratio))
        cells = functional.unfold(picture, self.ratio, stride=self.ratio).transpose(1, 2)
        out: Tensor = self.w2(functional.gelu(self.w1(cells)))
        return out


def span(rows: Tensor, cells: tuple[int, int], start: Tensor, newline: Tensor, end: Tensor) -> Tensor:
    """Lay a picture out for the decoder: start, every line of cells with a newline behind it, end.

    Args:
        rows: [..., lines * columns, d] of the aligner.
        cells: (lines, columns).
        start: [d].
        newline: [d].
        end: [d].

    Returns:
        [..., lines * (columns + 1) + 2, d].
    """
    lines = rows.reshape(*rows.shape[:-2], *cells, rows.shape[-1])
    breaks = newline.expand(*lines.shape[:-2], 1, -1)
    body = torch.cat((lines, breaks), -2).flatten(-3, -2)
    first, last = (mark.expand(*body.shape[:-2], 1, -1) for mark in (start, end))
    return torch.cat((first, body, last), -2)


def grid_angles(grid: tuple[int, int], dim: int, theta: float) -> Tensor:
    """Angles of each patch, [high * wide, dim] float64: line * f for the first half, column * f for the second.

    f_i = theta^(-2i / dim), i < dim / 2.
    """
    high, wide = grid
    frequency = frequencies(dim, theta, None)
    line, column = (torch.arange(n, dtype=torch.float64)[:, None] * frequency for n in grid)
    pairs = (line[:, None].expand(high, wide, -1), column[None].expand(high, wide, -1))
    return torch.cat(pairs, -1).flatten(0, 1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn value i of each head's first half with value i of its second half: x [..., n, 2k], cos and sin [n, k]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _check(rows: Tensor, grid: tuple[int, int]) -> None:
    high, wide = grid
    if rows.dim() != 3 or rows.shape[1] != high * wide:
        raise ValueError(f"picture has shape {tuple(rows.shape)}: must be [B, {high * wide}, n] for grid {high}x{wide}")

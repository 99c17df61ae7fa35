"""Image encoder: a small patch transformer and the span of tokens it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from epd_workers.reference.model.decoder import rms_norm
from epd_workers.reference.model.image import MERGE, PATCH, grid, patches

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from epd_workers.reference.model.weights import SeededWeights

_WIDTH = 64
_HEADS = 4
_BLOCKS = 2


def _position_code(positions: Tensor) -> Tensor:
    """Sine and cosine of one coordinate: [n] to [n, _WIDTH / 2]."""
    frequency = 100.0 ** (-torch.arange(0, _WIDTH // 2, 2, dtype=torch.float64) / (_WIDTH // 2))
    angles = torch.outer(positions.double(), frequency)
    return torch.cat((angles.sin(), angles.cos()), -1)


class _Block:
    def __init__(self, weights: SeededWeights, name: str) -> None:
        self.qkv = weights.matrix(f"{name}.qkv", _WIDTH, 3 * _WIDTH)
        self.output = weights.matrix(f"{name}.output", _WIDTH, _WIDTH)
        self.up = weights.matrix(f"{name}.up", _WIDTH, 4 * _WIDTH)
        self.down = weights.matrix(f"{name}.down", 4 * _WIDTH, _WIDTH)

    def __call__(self, rows: Tensor) -> Tensor:
        query, key, value = (rms_norm(rows) @ self.qkv).view(len(rows), 3, _HEADS, -1).permute(1, 2, 0, 3)
        query = query * (_WIDTH // _HEADS) ** -0.5
        # One head at a time: the score matrices of all heads of a large picture would double the process's memory.
        heads = [(q @ k.T).softmax(-1) @ v for q, k, v in zip(query, key, value, strict=True)]
        rows = rows + torch.cat(heads, -1) @ self.output
        return rows + functional.gelu(rms_norm(rows) @ self.up) @ self.down


class VisionEncoder:
    """Patches, transformer blocks without mask, MERGE x MERGE patches joined to one token of the decoder's width."""

    def __init__(self, hidden: int, weights: SeededWeights) -> None:
        self._patch = weights.matrix("vision.patch", PATCH * PATCH * 3, _WIDTH)
        self._blocks = [_Block(weights, f"vision.blocks.{i}") for i in range(_BLOCKS)]
        self._aligner_in = weights.matrix("aligner.in", MERGE * MERGE * _WIDTH, hidden)
        self._aligner_out = weights.matrix("aligner.out", hidden, hidden)
        self._marks = weights.draw("vision.marks", 3, hidden, std=1.0)

    def __call__(self, image: Image) -> Tensor:
        """Rows [span, hidden] float32: start, per row its cells and a newline, end.

        Raises:
            BadImage: The size is refused.
        """
        cells = grid(*image.size)
        pixels = patches(image, cells)
        high, wide = pixels.shape[:2]
        down, right = _position_code(torch.arange(high)), _position_code(torch.arange(wide))
        code = torch.cat((down[:, None].expand(-1, wide, -1), right[None].expand(high, -1, -1)), -1)
        rows = (pixels @ self._patch + code).view(high * wide, _WIDTH)
        for block in self._blocks:
            rows = block(rows)
        folded = rms_norm(rows).view(cells.rows, MERGE, cells.columns, MERGE, _WIDTH).transpose(1, 2)
        hidden = functional.gelu(folded.reshape(cells.rows, cells.columns, -1) @ self._aligner_in)
        tokens = rms_norm(hidden @ self._aligner_out)
        start, newline, end = self._marks[:, None]
        lines = torch.cat((tokens, newline.expand(cells.rows, 1, -1)), 1).flatten(0, 1)
        return torch.cat((start, lines, end)).float()

"""The model of this release: small, untrained, its weights a function of the seed."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from PIL import Image as PillowImage
from torch.nn import functional

from epd_workers.reference.model.cache import PagedCache
from epd_workers.reference.model.decoder import Decoder, DecoderSizes, rms_norm
from epd_workers.reference.model.image import check_size
from epd_workers.reference.model.interface import ModelConfig
from epd_workers.reference.model.tokenizer import Tokenizer
from epd_workers.reference.model.weights import SeededWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image
    from torch import Tensor

    from epd_workers.reference.model.interface import Cache, Chunk

_FORMAT = "seeded-1/float32"
PATCH = 14
MERGE = 3
CELL = PATCH * MERGE
MAX_SPAN = 160


class SeededModel:
    """Implements `interface.Model`."""

    def __init__(self, seed: int = 0, context_length: int = 8192, sizes: DecoderSizes | None = None) -> None:
        """Draw the weights.

        Args:
            seed: Same seed, same weights, on every machine.
            context_length: Most tokens in one sequence, in tokens.
            sizes: The architecture; the default is what pods run.
        """
        sizes = sizes or DecoderSizes()
        weights = SeededWeights(seed)
        identity = f"{_FORMAT} seed={seed} {sorted(asdict(sizes).items())}"
        layout = f"{_FORMAT}/{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        self.config = ModelConfig(Tokenizer.vocab_size, sizes.hidden, context_length, sizes.layers, layout)
        self._decoder = Decoder(sizes, Tokenizer.vocab_size, Tokenizer.eos_id, context_length, weights)
        self._vision = VisionEncoder(sizes.hidden, weights)

    def new_cache(self, page_size: int) -> PagedCache:
        """See `interface.Model`."""
        sizes = self._decoder.sizes
        return PagedCache(sizes.layers, sizes.kv_heads, sizes.head_dim, page_size)

    def image_tokens(self, width: int, height: int) -> int:
        """See `interface.Model`."""
        return grid(width, height).span

    @torch.inference_mode()
    def encode_image(self, image: Image) -> Tensor:
        """See `interface.Model`."""
        return self._vision(image)

    @torch.inference_mode()
    def forward(self, chunk: Chunk, cache: Cache) -> Tensor:
        """See `interface.Model`."""
        if chunk.start != cache.length:
            raise ValueError(f"chunk starts at {chunk.start}: the cache holds {cache.length} tokens")
        rows = self._decoder.embed(chunk.token_ids)
        for image in chunk.embeddings:
            rows[image.offset : image.offset + len(image.values)] = image.values.double()
        out = self._decoder.extend(rows, cast("PagedCache", cache))
        return self._decoder.logits(out if chunk.all_logits else out[-1:])

    @torch.inference_mode()
    def decode(self, token_ids: Sequence[int], caches: Sequence[Cache]) -> Tensor:
        """See `interface.Model`."""
        rows = self._decoder.embed(token_ids)
        return self._decoder.logits(self._decoder.decode(rows, cast("Sequence[PagedCache]", caches)))


@dataclass(frozen=True)
class Grid:
    """Cells of `CELL` x `CELL` pixels; one cell is one token."""

    rows: int
    columns: int

    @property
    def span(self) -> int:
        """Tokens: start, then per row its cells and a newline, then end."""
        return self.rows * (self.columns + 1) + 2


def grid(width: int, height: int) -> Grid:
    """Cells for a picture of this size in pixels.

    The nearest whole number of cells per side, at least 1; a picture whose span would exceed `MAX_SPAN` is scaled down
    first, keeping its proportions.

    Raises:
        BadImage: Empty, too large or too long.
    """
    check_size(width, height)
    scale = min(1.0, math.sqrt(MAX_SPAN * CELL * CELL / (width * height)))
    while True:
        cells = Grid(max(1, round(height * scale / CELL)), max(1, round(width * scale / CELL)))
        if cells.span <= MAX_SPAN:
            return cells
        scale *= 0.98


def patches(image: Image, cells: Grid) -> Tensor:
    """Pixels in -1..1, bicubic, as [rows * MERGE, columns * MERGE, PATCH * PATCH * 3] float64."""
    size = (cells.columns * CELL, cells.rows * CELL)
    pixels = np.asarray(image.convert("RGB").resize(size, PillowImage.Resampling.BICUBIC), dtype=np.float64)
    high, wide = cells.rows * MERGE, cells.columns * MERGE
    split = (pixels / 127.5 - 1.0).reshape(high, PATCH, wide, PATCH, 3).transpose(0, 2, 1, 3, 4)
    return torch.from_numpy(np.ascontiguousarray(split)).view(high, wide, PATCH * PATCH * 3)


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

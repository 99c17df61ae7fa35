"""The model of this release: small, untrained, its weights a function of the seed."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import TYPE_CHECKING, cast

import torch

from epd_workers.reference.model.cache import PagedCache
from epd_workers.reference.model.decoder import Decoder, DecoderSizes
from epd_workers.reference.model.image import grid
from epd_workers.reference.model.interface import ModelConfig
from epd_workers.reference.model.tokenizer import Tokenizer
from epd_workers.reference.model.vision import VisionEncoder
from epd_workers.reference.model.weights import SeededWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image
    from torch import Tensor

    from epd_workers.reference.model.interface import Cache, Chunk

_FORMAT = "seeded-1/float32"


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

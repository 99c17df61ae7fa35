"""A checkpoint ready to serve: weights, tokenizer and what must be computed once.

With the torch operations all arithmetic is float64, whose order-dependent noise (1e-16) is far below the gap between
two logits or two steps of a cache format: sums in another order change no token.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import torch

from epd_kernels.dispatch import TORCH
from epd_workers.reference.cache.geometry import Geometry
from epd_workers.reference.model import checkpoint, image
from epd_workers.reference.model.engram_hash import NOTHING, EngramHash, History, token_map
from epd_workers.reference.model.forward import Forward
from epd_workers.reference.model.interface import ModelConfig
from epd_workers.reference.model.tokenizer import Tokenizer
from epd_workers.reference.model.transformer import Transformer, initialise
from epd_workers.reference.model.vision import span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image
    from torch import Tensor

    from epd_kernels.dispatch import Operations
    from epd_workers.reference.cache.geometry import CacheType
    from epd_workers.reference.cache.paged_pool import KvPool
    from epd_workers.reference.model.config import Config
    from epd_workers.reference.model.replay import Preset

PACKAGED: Final = Path(__file__).parents[1] / "checkpoint"


class LoadedModel:
    """Weights and tokenizer of one checkpoint.

    Args:
        weights: In the dtype to compute in.
        tokenizer: The checkpoint's own.
        digest: Of the checkpoint.
        context_length: Most tokens in one sequence; None takes what the checkpoint was made for.
        operations: What touches the caches.

    Raises:
        BadTokenMap: The Engram tables were made for another vocabulary.
    """

    def __init__(
        self,
        weights: Transformer,
        tokenizer: Tokenizer,
        digest: str,
        *,
        context_length: int | None = None,
        operations: Operations = TORCH,
    ) -> None:
        text = weights.config.text
        self.weights = weights.eval().requires_grad_(requires_grad=False)
        self.tokenizer = tokenizer
        self.operations = operations
        self.image_id = weights.config.image_token_id
        self.config = ModelConfig(
            vocab_size=text.vocab_size,
            hidden_size=text.hidden_size,
            context_length=min(context_length or text.max_position_embeddings, text.max_position_embeddings),
            layers=text.num_hidden_layers,
            window=text.sliding_window,
            digest=digest,
        )
        self._hash = EngramHash(text, engram_ids(tokenizer)) if text.engram_layer_ids else None

    @classmethod
    def load(
        cls, directory: Path | None = None, context_length: int | None = None, operations: Operations = TORCH
    ) -> Self:
        """Read a checkpoint directory (None: the one in the package), to compute in the operations' widest type.

        Raises:
            BadCheckpoint: Lists everything that is wrong with it.
        """
        where = directory or PACKAGED
        tokenizer = Tokenizer.load(where / "tokenizer.json")
        _, weights = checkpoint.load(where, operations.widest)
        digest = checkpoint.digest(where)
        return cls(weights, tokenizer, digest, context_length=context_length, operations=operations)

    @classmethod
    def random(
        cls, config: Config, seed: int, dtype: torch.dtype = torch.float64, operations: Operations = TORCH
    ) -> Self:
        """Untrained weights with the packaged tokenizer, for tests and measurements."""
        weights = initialise(Transformer(config).to(dtype), seed)
        return cls(weights, Tokenizer.default(), f"random-{seed}", operations=operations)

    def geometry(self, page_size: int, cache_type: CacheType) -> Geometry:
        """Sizes of the caches.

        Raises:
            ValueError: The page size does not suit the layers.
        """
        return Geometry.of(self.weights.config, page_size, cache_type, self.config.digest)

    def bind(self, pool: KvPool, replay: Preset | None) -> Forward:
        """The forward over a pool."""
        return Forward(self.weights, self._hash, pool, replay, self.operations)

    def history(self, before: Sequence[int]) -> History:
        """What Engram must know when a run begins behind these token ids; the last three decide."""
        depth = self.weights.config.text.engram_max_ngram_size - 1
        last = [NOTHING if token == self.image_id else token for token in before[-depth:]] if depth else []
        return History((*(NOTHING,) * (depth - len(last)), *last))

    def image_tokens(self, width: int, height: int) -> int:
        """Span length of a picture of this size in pixels, start, newline and end rows included.

        Raises:
            BadImage: The size is refused.
        """
        return image.plan(width, height, self.weights.config.vision).span

    @torch.inference_mode()
    def encode_image(self, picture: Image) -> Tensor:
        """Embeddings [image_tokens(width, height), hidden] float32.

        Raises:
            BadImage: The size is refused.
        """
        weights = self.weights
        plan = image.plan(*picture.size, weights.config.vision)
        patches = image.patches(picture, plan)[None].to(weights.embed.weight.dtype)
        rows = weights.aligner(weights.vision(patches, plan.grid), plan.grid)[0]
        return span(rows, plan.cells, weights.image_start, weights.image_newline, weights.image_end).float()


@lru_cache(maxsize=8)
def engram_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Compressed Engram id of every token id."""
    ids = range(tokenizer.vocab_size)
    return token_map([tokenizer.decode([i]) for i in ids], [tokenizer.token_text(i) for i in ids])[0]

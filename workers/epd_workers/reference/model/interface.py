"""What the engine may ask of a model: the seam behind which the architecture can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image
    from torch import Tensor


class BadImage(ValueError):
    """The picture cannot be used; the message names what is wrong and the way out (HTTP 400)."""


class LayoutMismatch(ValueError):
    """Key/value bytes come from a process with another model, seed or page size."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes that callers need.

    Attributes:
        vocab_size: Columns of the logits.
        hidden_size: Columns of image embeddings.
        context_length: Most tokens (prompt and answer together) in one sequence.
        layers: Decoder layers.
        layout: Hash of everything the key/value bytes depend on (sizes, formats, seed), the page size excepted.
    """

    vocab_size: int
    hidden_size: int
    context_length: int
    layers: int
    layout: str


@dataclass(frozen=True)
class Rows:
    """Embedding rows that replace those of the placeholder tokens.

    Attributes:
        offset: First replaced row, counted from the chunk's first token.
        values: [rows, hidden] float32.
    """

    offset: int
    values: Tensor


@dataclass(frozen=True)
class Chunk:
    """Some consecutive tokens of one sequence.

    Attributes:
        token_ids: [n] ids, n >= 1.
        start: Position of the first one; equals the cache's length.
        embeddings: Rows for the image positions among them.
        all_logits: Logits for every token instead of the last one alone.
    """

    token_ids: Sequence[int]
    start: int
    embeddings: tuple[Rows, ...] = ()
    all_logits: bool = False


class Cache(Protocol):
    """Keys and values of one sequence, addressed in pages of `page_size` tokens."""

    @property
    def length(self) -> int:
        """Tokens held."""

    @property
    def page_size(self) -> int:
        """Tokens per page."""

    @property
    def page_bytes(self) -> int:
        """Bytes of every page, the last partial one too (zero-filled)."""

    def read_page(self, index: int) -> bytes:
        """Bytes of page `index` (from 0).

        Raises:
            IndexError: The page holds no token.
        """

    def write_page(self, index: int, data: bytes, tokens: int) -> None:
        """Append page `index` with `tokens` valid tokens; pages come in order and only the last may be partial.

        Raises:
            LayoutMismatch: `data` is not `page_bytes` long.
            IndexError: The page is not the next one, or `tokens` is not in 1..page_size.
        """


class Model(Protocol):
    """A causal decoder with an image encoder. Not thread-safe: one thread calls it."""

    @property
    def config(self) -> ModelConfig:
        """Sizes and layout."""

    def new_cache(self, page_size: int) -> Cache:
        """An empty cache."""

    def image_tokens(self, width: int, height: int) -> int:
        """Span length of a picture of this size in pixels, start, newline and end rows included.

        Raises:
            BadImage: The size is refused.
        """

    def encode_image(self, image: Image) -> Tensor:
        """Embeddings [image_tokens(width, height), hidden] float32.

        Raises:
            BadImage: The size is refused.
        """

    def forward(self, chunk: Chunk, cache: Cache) -> Tensor:
        """Logits [n or 1, vocab] float32; appends the chunk's keys and values to the cache."""

    def decode(self, token_ids: Sequence[int], caches: Sequence[Cache]) -> Tensor:
        """One more token for each of B sequences: logits [B, vocab] float32; appends to every cache."""

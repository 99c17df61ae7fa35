"""The interface between `engine/` and `model/`: plain values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from epd_workers.reference.cache.sequence import Sequence as CachedSequence
    from epd_workers.reference.model.replay import Work


class BadImage(ValueError):
    """The picture cannot be used; the message names what is wrong and the way out (HTTP 400)."""


class LayoutMismatch(ValueError):
    """Key/value bytes come from a process with another model, format or page size."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes that callers need.

    Attributes:
        vocab_size: Columns of the logits.
        hidden_size: Columns of image embeddings.
        context_length: Most tokens (prompt and answer together) in one sequence.
        layers: Layers, both halves.
        window: Tokens of the sliding window.
        digest: Of the checkpoint; part of the layout that prefill and decode compare.
    """

    vocab_size: int
    hidden_size: int
    context_length: int
    layers: int
    window: int
    digest: str


@dataclass(frozen=True)
class Rows:
    """Embedding rows that replace those of the placeholder tokens.

    Attributes:
        offset: First replaced row, counted from the step's first token.
        values: [rows, hidden] float32.
    """

    offset: int
    values: Tensor


@dataclass(frozen=True)
class Extend:
    """Some consecutive tokens of one sequence that run in one step; one token is a decode step.

    Attributes:
        token_ids: [n] ids, n >= 1.
        sequence: Its caches, with room reserved for these tokens. The first row stands at `sequence.length - replayed`.
        embeddings: Rows for the image positions among them.
        all_logits: Logits for every new token instead of only the last one; the decoder half then runs on all rows.
        replayed: Rows in front that ran before and run again because their windows are gone: they write windows but no
            global entries, and nothing looks behind the first of them.
        decode: A step of an answer: never trimmed, and its window reaches back as far as it is long.
    """

    token_ids: Sequence[int]
    sequence: CachedSequence
    embeddings: tuple[Rows, ...] = ()
    all_logits: bool = False
    replayed: int = 0
    decode: bool = False

    @property
    def start(self) -> int:
        """Position of the first row."""
        return self.sequence.length - self.replayed

    @property
    def end(self) -> int:
        """Length of the sequence behind this step."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True)
class Output:
    """What a step gives.

    Attributes:
        logits: Per extend, [new tokens or 1, vocab] float32.
        work: Rows times layers run and left out.
    """

    logits: list[Tensor]
    work: Work

"""A forward that knows what its parts cost: CPU seconds by part, and rows by layer as they really ran."""

from __future__ import annotations

import contextlib
import gc
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from typing_extensions import override

from bench.replay.model import PAGE_SIZE
from epd_kernels.dispatch import TORCH
from epd_workers.reference.cache.paged_pool import KvPool
from epd_workers.reference.cache.sequence import Sequence as CachedSequence
from epd_workers.reference.model.engram_hash import EngramHash
from epd_workers.reference.model.forward import Forward
from epd_workers.reference.model.interface import Extend
from epd_workers.reference.model.loaded import engram_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from epd_workers.reference.model.batch import Batch
    from epd_workers.reference.model.layer import Layer, State
    from epd_workers.reference.model.loaded import LoadedModel
    from epd_workers.reference.model.replay import Preset, Work

Piece = Literal["embedding", "engram", "entries", "head", "selection"]
SHARED: Final[tuple[Piece, ...]] = ("embedding", "engram", "entries", "head")
"""What runs for all rows (the head: for the last ones) with and without replay, outside the layers' run over rows."""


@dataclass(frozen=True)
class Cost:
    """One prefill.

    Attributes:
        seconds: CPU seconds, user and system.
        pieces: Those of them that went into a piece: embedding (plan of the batch, rotations, embedding rows), engram
            (hashes and lookups), entries (projection and writing of the global entries and index keys, layer 20's for
            all rows among them), head (logits of each last row), selection (index queries, scores and top-k). The rest
            is the layers' own.
        rows: Rows that each layer ran.
        work: What the forward says that it ran.
    """

    seconds: float
    pieces: dict[Piece, float]
    rows: tuple[int, ...]
    work: Work

    @property
    def rows_x_layers(self) -> int:
        """Rows times layers, counted where they ran."""
        return sum(self.rows)

    @property
    def shared(self) -> float:
        """CPU seconds of what replay does not change."""
        return sum(self.pieces[piece] for piece in SHARED)

    @property
    def layers(self) -> float:
        """CPU seconds without the shared ones: what rows times layers stand for."""
        return self.seconds - self.shared

    @property
    def linear(self) -> float:
        """CPU seconds of the layers without index selection, whose cost per row grows with the prompt."""
        return self.layers - self.pieces["selection"]


class Meter(Forward):
    """Measures prefills of a model over a pool of its own; the arithmetic is that of the forward it extends.

    Args:
        model: What to run.
        tokens: Most rows of a prefill.
        requests: Most requests of a prefill; each may leave a page half empty.
    """

    def __init__(self, model: LoadedModel, tokens: int, requests: int) -> None:
        pages = tokens // PAGE_SIZE + requests
        text = model.weights.config.text
        hashes = EngramHash(text, engram_ids(model.tokenizer)) if text.engram_layer_ids else None
        super().__init__(model.weights, hashes, KvPool(model.geometry(PAGE_SIZE, "fp4"), pages, pages), None, TORCH)
        self._history = model.history([])
        self._spent: defaultdict[Piece, float] = defaultdict(float)
        self._ran = [0] * text.num_hidden_layers
        for layer in model.weights.stack:
            if layer.engram is not None:
                layer.engram.register_forward_pre_hook(lambda *_: self._add("engram", -time.process_time()))
                layer.engram.register_forward_hook(lambda *_: self._add("engram", time.process_time()))

    def measure(self, prompts: Sequence[Sequence[int]], preset: Preset | None) -> Cost:
        """Run one prefill of whole prompts from nothing; leaves nothing behind in the pool."""
        extends = [Extend(ids, self._room(len(ids))) for ids in prompts]
        self._replay = preset
        self._spent.clear()
        self._ran = [0] * len(self._ran)
        gc.collect()
        start = time.process_time()
        output = self(extends)
        seconds = time.process_time() - start
        for extend in extends:
            extend.sequence.release()
        pieces = {piece: self._spent[piece] for piece in (*SHARED, "selection")}
        return Cost(seconds, pieces, tuple(self._ran), output.work)

    def _room(self, tokens: int) -> CachedSequence:
        sequence = CachedSequence(self._pool)
        sequence.history = self._history
        sequence.reserve(tokens)
        return sequence

    def _add(self, piece: Piece, seconds: float) -> None:
        self._spent[piece] += seconds

    @contextlib.contextmanager
    def _timed(self, piece: Piece) -> Iterator[None]:
        start = time.process_time()
        yield
        self._add(piece, time.process_time() - start)

    @override
    def _batch(self, extends: Sequence[Extend], ids: Tensor) -> Batch:
        with self._timed("embedding"):
            return super()._batch(extends, ids)

    @override
    def _embed(self, ids: Tensor, extends: Sequence[Extend]) -> Tensor:
        with self._timed("embedding"):
            return super()._embed(ids, extends)

    @override
    def _columns(self, extends: Sequence[Extend]) -> Tensor:
        with self._timed("engram"):
            return super()._columns(extends)

    @override
    def _compress(self, layer: Layer, x: Tensor, batch: Batch) -> None:
        with self._timed("entries"):
            super()._compress(layer, x, batch)

    @override
    def _select(self, layer: Layer, latent: Tensor, x: Tensor, batch: Batch) -> None:
        with self._timed("selection"):
            super()._select(layer, latent, x, batch)

    @override
    def _attention(self, layer: Layer, x: Tensor, batch: Batch) -> Tensor:
        self._ran[layer.plan.index] += len(x)
        return super()._attention(layer, x, batch)

    @override
    def _logits(self, state: State, batch: Batch) -> list[Tensor]:
        with self._timed("head"):
            return super()._logits(state, batch)

"""Our model with the oracle's weights, over caches of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from epd_kernels.dispatch import TORCH
from epd_workers.reference.cache.geometry import Geometry
from epd_workers.reference.cache.paged_pool import KvPool
from epd_workers.reference.cache.sequence import Sequence
from epd_workers.reference.model.config import Config
from epd_workers.reference.model.engram_hash import NOTHING, EngramHash, History
from epd_workers.reference.model.forward import Forward
from epd_workers.reference.model.interface import Extend, Rows
from epd_workers.reference.model.replay import PRESETS, Work
from epd_workers.reference.model.storage import slots
from epd_workers.reference.model.transformer import Transformer
from tests.support.reference.configs import Prompt, random_prompt, random_weights

if TYPE_CHECKING:
    from collections.abc import Sequence as Values

    from torch import Tensor

    from epd_kernels.dispatch import Operations
    from epd_workers.reference.cache.geometry import CacheType
    from epd_workers.reference.model.replay import Preset

PAGE = 8
PAGES = 64


def load(config: Config, weights: dict[str, Tensor]) -> Transformer:
    """A module with exactly these weights under released names."""
    model = Transformer(config).double()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for slot in slots(config):
            if slot.name.startswith("mtp.") and slot.name.endswith(".bias_vl"):
                continue  # stored, never used
            target = parameters[slot.parameter]
            (target if slot.expert is None else target[slot.expert]).copy_(weights[slot.name])
    return model


@dataclass
class Request:
    """One request on its way: what it has produced so far."""

    sequence: Sequence
    logits: list[Tensor] = field(default_factory=list)
    work: Work = field(default_factory=Work)


@dataclass
class Trunk:
    """A model of an oracle config."""

    data: dict[str, Any]
    seed: int
    length: int
    images: tuple[range, ...] = ()
    cache_type: CacheType = "fp4"
    sharpness: float = 3.0
    operations: Operations = TORCH

    def __post_init__(self) -> None:
        """Draw weights and a prompt."""
        self.config = Config.from_json(self.data)
        text = self.config.text
        self.weights = random_weights(self.data, self.seed, self.sharpness)
        drawn = random_prompt(self.data, self.seed, self.length, self.images)
        # Every compressed id must occur, as in a real vocabulary.
        mapping = [i % text.engram_compressed_vocab_size for i in range(text.vocab_size)]
        self.prompt = Prompt(drawn.token_ids, drawn.image_rows, mapping)
        self.model = load(self.config, self.weights).to(self.operations.widest)
        self.hash = EngramHash(text, mapping) if text.engram_layer_ids else None
        self.pool = KvPool(Geometry.of(self.config, PAGE, self.cache_type), PAGES, PAGES)

    def bind(self, replay: str | None = None) -> Forward:
        """The forward under a preset."""
        return Forward(self.model, self.hash, self.pool, self.preset(replay), self.operations)

    @staticmethod
    def preset(name: str | None) -> Preset | None:
        """A preset by name."""
        return None if name is None else PRESETS[name]

    def begin(self) -> Request:
        """An empty request with room for the prompt."""
        sequence = Sequence(self.pool)
        sequence.history = History.empty(self.config.text)
        sequence.reserve(self.length)
        return Request(sequence)

    def extend(
        self, request: Request, stop: int, *, replayed: int = 0, decode: bool = False, all_logits: bool = False
    ) -> Extend:
        """The step that takes a request to `stop` tokens."""
        start = request.sequence.length - replayed
        if replayed:
            request.sequence.history = self.history(start)
        rows = tuple(Rows(at - start, row[None]) for at, row in self.prompt.image_rows.items() if start <= at < stop)
        ids = self.prompt.token_ids[start:stop]
        return Extend(ids, request.sequence, rows, all_logits=all_logits, replayed=replayed, decode=decode)

    def history(self, at: int) -> History:
        """What Engram knows before position `at`."""
        depth = self.config.text.engram_max_ngram_size - 1
        image = self.config.image_token_id
        before = [NOTHING if i == image else i for i in self.prompt.token_ids[max(0, at - depth) : at]]
        return History((*(NOTHING,) * (depth - len(before)), *before))

    def run(
        self, chunks: Values[int], *, decode: int = 0, replay: str | None = None, all_logits: bool = False
    ) -> Request:
        """Chunks, then single tokens."""
        forward, request = self.bind(replay), self.begin()
        for rows in (*chunks, *(1,) * decode):
            single = len(request.logits) >= len(chunks)
            step = self.extend(request, request.sequence.length + rows, decode=single, all_logits=all_logits)
            out = forward([step])
            request.logits.append(out.logits[0])
            request.work += out.work
        return request

"""One request alone: the model's forward over pages of its own, chunk by chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from epd_workers.reference.cache.paged_pool import KvPool
from epd_workers.reference.cache.sequence import Sequence as Pages
from epd_workers.reference.engine.sampler import log_softmax
from epd_workers.reference.model.interface import Extend, Rows
from tests.support.reference.small import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from epd_workers.reference.engine.request import Prompt, Step
    from epd_workers.reference.model.loaded import LoadedModel
    from epd_workers.reference.model.replay import Preset


class Loop:
    """The plain run that an engine's shortcuts are held against.

    Attributes:
        seen: Logits of the last row of every step.
    """

    def __init__(
        self, model: LoadedModel, prompt: Prompt, preset: Preset | None = None, page_size: int = 4, cache: Any = "fp4"
    ) -> None:
        pool = KvPool(model.geometry(page_size, cache), 80, 80)
        self.model, self.prompt = model, prompt
        self.forward = model.bind(pool, preset)
        self.pages = Pages(pool)
        self.pages.reserve(160)
        self.pages.history = model.history([])
        self.seen: list[torch.Tensor] = []

    def rows(self, stop: int, again: int = 0) -> torch.Tensor:
        """Logits of the last prompt row before `stop`; `again` rows before the first new one run again."""
        first = self.pages.length - again
        table = torch.zeros(len(self.prompt.token_ids), HIDDEN)
        for image in self.prompt.images:
            table[image.start : image.start + len(image.embeddings)] = image.embeddings
        ids = self.prompt.token_ids[first:stop]
        actual = [Rows(i, table[first + i][None]) for i, token in enumerate(ids) if token == 258]
        self.pages.history = self.model.history(self.prompt.token_ids[:first])
        return self._run(Extend(ids, self.pages, tuple(actual), replayed=again))

    def through(self, stops: Iterable[int], again: int = 0) -> torch.Tensor:
        """Chunks that end at `stops`, the first of which runs `again` rows again; logits of the last row."""
        for stop in stops:
            logits = self.rows(stop, again)
            again = 0
        return logits

    def answer(self, logits: torch.Tensor, count: int = 3) -> list[tuple[int, float]]:
        """Greedy tokens and their log-probabilities; runs all of them."""
        chosen = []
        for _ in range(count):
            row = log_softmax(logits.double().numpy())
            chosen.append((int(row.argmax()), float(row.max())))
            logits = self._run(Extend([chosen[-1][0]], self.pages, decode=True))
        return chosen

    def _run(self, extend: Extend) -> torch.Tensor:
        self.seen.append(self.forward([extend]).logits[0][-1])
        return self.seen[-1]


def agrees(steps: Sequence[Step], expected: Sequence[tuple[int, float]]) -> bool:
    return [step.token_id for step in steps] == [token for token, _ in expected] and [
        step.logprob for step in steps
    ] == pytest.approx([logprob for _, logprob in expected], rel=1e-6)

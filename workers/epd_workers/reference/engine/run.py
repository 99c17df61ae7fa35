"""A job on its way through the model: what to compute next and what a row of logits means for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epd_workers.reference.engine.job import Page
from epd_workers.reference.engine.request import Handover, Step
from epd_workers.reference.engine.sampler import History, choose, log_softmax, penalize, ranked, uniform
from epd_workers.reference.engine.text import TextStream
from epd_workers.reference.model.interface import Chunk, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from epd_workers.reference.engine.job import Event, Job
    from epd_workers.reference.engine.request import Finish
    from epd_workers.reference.model.interface import Cache, ModelConfig


class Run:
    """State of an admitted job. The model thread alone calls it; `alive` is guarded by the scheduler's lock."""

    def __init__(self, job: Job, cache: Cache, config: ModelConfig, eos_id: int) -> None:
        self.job = job
        self.cache = cache
        self.alive = True
        self.restored = job.kind != "resume"
        self.last = -1
        self._layout = config.layout
        self._eos_id = eos_id
        self._produced = 0
        self._pages_out = 0
        self._history = History(config.vocab_size, job.prompt.token_ids)
        self._text = TextStream(job.sampling.stop, job.sampling.min_new_tokens)
        self._prompt_logprobs: list[float | None] = [None]

    @property
    def prefilling(self) -> bool:
        """Whether part of the prompt has no keys and values yet."""
        return self.cache.length < len(self.job.prompt.token_ids)

    def restore(self) -> Step:
        """Take over from prefill: write its pages and return its token."""
        handover = self.job.handover
        assert handover is not None
        size = self.cache.page_size
        for index, data in enumerate(self.job.pages):
            self.cache.write_page(index, data, min(size, handover.prompt_tokens - index * size))
        self.job.pages.clear()
        self._record(handover.first.token_id)
        self.restored = True
        return handover.first

    def next_chunk(self, size: int) -> Chunk:
        """The next at most `size` prompt tokens.

        Boundaries are multiples of `size`, whatever else runs: a result never depends on the load.
        """
        start = self.cache.length
        ids = self.job.prompt.token_ids[start : start + size]
        rows = []
        for image in self.job.prompt.images:
            low, high = max(image.start, start), min(image.start + len(image.embeddings), start + len(ids))
            if low < high:
                rows.append(Rows(low - start, image.embeddings[low - image.start : high - image.start]))
        return Chunk(ids, start, tuple(rows), all_logits=self.job.sampling.prompt_logprobs)

    def after_chunk(self, chunk: Chunk, logits: Tensor) -> list[Event]:
        """Pages filled by the chunk; behind the last one the first token, as a step or a handover."""
        table = logits.double().numpy()
        if chunk.all_logits:
            self._note_prompt(chunk, table)
        events: list[Event] = list(self._filled_pages()) if self.job.kind == "prefill" else []
        if self.prefilling:
            return events
        step = self.take(table[-1])
        if self.job.kind == "generate":
            return [step]
        prompt, size = len(self.job.prompt.token_ids), self.cache.page_size
        return [*events, Handover(step, prompt, -(-prompt // size), size, self._layout, self.job.seed)]

    def take(self, logits: NDArray[np.float64]) -> Step:
        """Choose the next token from one row [vocab]."""
        sampling, index = self.job.sampling, self._produced
        adjusted = penalize(logits, sampling, self._history)
        if index < sampling.min_new_tokens:
            adjusted = adjusted.copy()
            adjusted[[i for i in (self._eos_id, *sampling.stop_token_ids) if 0 <= i < len(adjusted)]] = -np.inf
        token = choose(adjusted, sampling, uniform(self.job.seed, index))
        finish, matched = self._record(token)
        logprob = 0.0
        top: tuple[tuple[int, float], ...] = ()
        if sampling.logprobs or sampling.top_logprobs:
            logprobs = log_softmax(logits)
            logprob, top = float(logprobs[token]), ranked(logprobs, sampling.top_logprobs)
        prompt_logprobs = tuple(self._prompt_logprobs) if sampling.prompt_logprobs and index == 0 else ()
        return Step(token, logprob, top, finish, matched, prompt_logprobs)

    def _record(self, token: int) -> tuple[Finish | None, int | str | None]:
        """Count a token of the answer; say whether and why it is the last."""
        sampling = self.job.sampling
        self.last = token
        self._produced += 1
        self._history.add(token)
        self._text.push(token)
        if token in sampling.stop_token_ids or (token == self._eos_id and not sampling.ignore_eos):
            return "stop", token
        if self._text.matched is not None:
            return "stop", self._text.matched
        return ("length", None) if self._produced >= sampling.max_new_tokens else (None, None)

    def _filled_pages(self) -> Iterator[Page]:
        size = self.cache.page_size
        filled = self.cache.length // size if self.prefilling else -(-self.cache.length // size)
        for index in range(self._pages_out, filled):
            yield Page(index, self.cache.read_page(index))
        self._pages_out = filled

    def _note_prompt(self, chunk: Chunk, table: NDArray[np.float64]) -> None:
        """Row t of the table predicts token t + 1 of the prompt."""
        following = self.job.prompt.token_ids[chunk.start + 1 : chunk.start + len(table) + 1]
        self._prompt_logprobs += [float(log_softmax(table[i])[token]) for i, token in enumerate(following)]

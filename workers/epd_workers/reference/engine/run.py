"""A job on its way through the model: which rows to run next and what a row of logits means for it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epd_workers.reference.cache import wire
from epd_workers.reference.engine.check import expected_pieces
from epd_workers.reference.engine.job import Piece
from epd_workers.reference.engine.memory import Start
from epd_workers.reference.engine.prefetch import Prefetched
from epd_workers.reference.engine.prefix_key import Names
from epd_workers.reference.engine.request import Handover, Step
from epd_workers.reference.engine.sampler import History, choose, log_softmax, penalize, ranked, uniform
from epd_workers.reference.engine.text import TextStream
from epd_workers.reference.model.interface import Extend, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Sequence as Values

    from numpy.typing import NDArray
    from torch import Tensor

    from epd_workers.reference.cache.sequence import Sequence
    from epd_workers.reference.engine.job import Event, Job
    from epd_workers.reference.engine.memory import Memory
    from epd_workers.reference.engine.prefetch import Prefetch
    from epd_workers.reference.engine.request import Finish
    from epd_workers.reference.model.loaded import LoadedModel


class Mark(NamedTuple):
    """What a step changes of a sequence besides the bytes of its pages, which running it again overwrites."""

    length: int
    history: object | None
    pending: Mapping[int, tuple[Tensor, Tensor] | None]


class Run:
    """State of a job. Once it is admitted the model thread alone calls it; `alive` is guarded by the scheduler's lock.

    Attributes:
        job: What was asked.
        sequence: Its pages.
        prefetch: What is being looked up for it; None if nothing is.
        alive: Neither aborted nor done.
        begun: It has taken over a prefix, or what prefill sent.
        start: Where its prompt began to run.
        pages_shared: Leading pages that need not be handed in to a store.
        windows_shared: The last position whose window has been handed in.
    """

    def __init__(self, job: Job, sequence: Sequence, model: LoadedModel, prefetch: Prefetch | None = None) -> None:
        self.job = job
        self.sequence = sequence
        self.prefetch = prefetch
        self.alive = True
        self.begun = False
        self.start = Start()
        self.pages_shared = self.windows_shared = 0
        self._model = model
        self._names = Names(job, model.image_id, sequence.pool.geometry.page_size)
        self._prefetched = Prefetched()
        self._pages_out = 0
        self._answer: list[int] = []
        self._text = TextStream(model.tokenizer, job.sampling.stop, job.sampling.min_new_tokens)
        self._prompt_logprobs: list[float | None] = [None]

    @property
    def hit(self) -> int:
        """Prompt tokens whose entries an earlier request had left."""
        return self.start.hit

    @property
    def prefilling(self) -> bool:
        """Whether part of the prompt has no entries yet and will get them here."""
        return self.job.kind != "resume" and self.sequence.length < len(self.job.prompt.token_ids)

    @property
    def decoding(self) -> bool:
        """Whether its next row is the answer's last token."""
        return self.begun and not self.prefilling

    @property
    def key(self) -> list[int]:
        """Names of all tokens run so far, as far as known."""
        return self._names.key(self._answer)

    @property
    def chain(self) -> Values[bytes]:
        """Digest of every full page of tokens run so far, as far as their names are known."""
        return self._names.chain(self._answer)

    @property
    def windows_from(self) -> int:
        """First position whose windows are complete: prefill sends only those of the last rows."""
        window = self._model.config.window
        return max(0, len(self.job.prompt.token_ids) - window) if self.job.kind == "resume" else 0

    @property
    def whole_from(self) -> int:
        """First position whose windows were computed, received or adopted here."""
        return max(self.windows_from, self.start.windows_from)

    def blocked(self, now: float) -> bool:
        """Whether it waits for what others may have left of its prompt."""
        return not self.begun and self.prefetch is not None and not self.prefetch.due(now)

    def begin(self, memory: Memory) -> None:
        """Reserve what an earlier request left of this prompt; log-probabilities of a prompt need all its rows."""
        ids = self.job.prompt.token_ids
        if self.prefetch is not None:
            self._prefetched, self.prefetch = self.prefetch.take(), None
        if not self.job.sampling.prompt_logprobs:
            self.start = memory.begin(self.sequence, self._names.prompt, self.job.prompt.salt, self._prefetched)
        self.pages_shared = self.hit // memory.geometry.page_size
        self.sequence.history = self._model.history(ids[: self.hit - self.start.replayed])
        self.begun = True

    def take_over(self, layers: int) -> None:
        """Write what came from stores into the pages that `begin` has reserved, and note what is not exact.

        Args:
            layers: How many the window has.
        """
        prefetched, start, size = self._prefetched, self.start, self.sequence.pool.geometry.page_size
        self._prefetched = Prefetched()
        for index in range(start.hit // size - start.stored, start.hit // size):
            page = prefetched.pages[index - prefetched.first]
            wire.write_page(self.sequence, index, page.data)
            if page.replayed:
                self.sequence.approximate(index * size)
        if start.adopted and prefetched.window is not None:
            wire.write_window(self.sequence, start.hit, layers, prefetched.window.data)
            if prefetched.window.replayed:
                self.sequence.approximate(start.hit)
        if start.replayed < start.hit and start.replayed:
            self.sequence.approximate(start.hit)

    def reserve_restored(self, memory: Memory) -> None:
        """Take the pages that prefill's pieces go into."""
        tokens = len(self.job.prompt.token_ids)
        memory.reserve(self.sequence, tokens, windows_from=self.windows_from)

    def restore(self) -> Step:
        """Take over from prefill: write its pieces and return its token."""
        handover, ids = self.job.handover, self.job.prompt.token_ids
        assert handover is not None
        self.sequence.advance(len(ids))
        for piece in self.job.pieces:
            if piece.kind == "page":
                wire.write_page(self.sequence, piece.index, piece.data)
            elif piece.kind == "window":
                wire.write_window_page(self.sequence, piece.index, piece.data)
            else:
                wire.write_state(self.sequence, piece.data)
        self.job.pieces.clear()
        self.pages_shared = len(ids) // self.sequence.pool.geometry.page_size
        if not handover.exact:
            self.sequence.approximate(0)
        self.sequence.history = self._model.history(ids)
        self._record(handover.first.token_id)
        self.begun = True
        return handover.first

    def next_rows(self, size: int) -> int:
        """Prompt rows of the next chunk, those that run again included."""
        start, replayed = self._place()
        size = max(size, self.start.least) if start == self.hit > 0 else size
        return min(size, len(self.job.prompt.token_ids) - start) + replayed

    def next_chunk(self, memory: Memory, size: int) -> Extend:
        """The next at most `size` prompt tokens, with room for them.

        Boundaries follow from where the request's own rows begin, whatever else runs: a result never depends on the
        load.

        Raises:
            OutOfPages: More than was admitted.
        """
        rows = self.next_rows(size)
        start, replayed = self._place()
        first = start - replayed
        memory.reserve(self.sequence, first + rows, again_from=first if replayed else None)
        images = []
        for image in self.job.prompt.images:
            low, high = max(image.start, first), min(image.start + len(image.embeddings), first + rows)
            if low < high:
                images.append(Rows(low - first, image.embeddings[low - image.start : high - image.start]))
        return Extend(
            self.job.prompt.token_ids[first : first + rows],
            self.sequence,
            tuple(images),
            all_logits=self.job.sampling.prompt_logprobs,
            replayed=replayed,
        )

    def next_token(self, memory: Memory) -> Extend:
        """The answer's last token, with room for it.

        Raises:
            OutOfPages: More than was admitted.
        """
        memory.reserve(self.sequence, self.sequence.length + 1)
        return Extend(self._answer[-1:], self.sequence, decode=True)

    def mark(self) -> Mark:
        """What `reset` needs to undo a failed step."""
        return Mark(self.sequence.length, self.sequence.history, dict(self.sequence.pending))

    def reset(self, mark: Mark) -> None:
        """Forget a failed step."""
        self.sequence.length, self.sequence.history = mark.length, mark.history
        self.sequence.pending = dict(mark.pending)

    def after(self, extend: Extend, logits: Tensor) -> list[Event]:
        """What a step gives: pieces of a prefill, and the next token, as a step or a handover."""
        table = logits.double().numpy()
        if extend.all_logits:
            self._note_prompt(table)
        events: list[Event] = list(self._filled_pages()) if self.job.kind == "prefill" else []
        if self.prefilling:
            return events
        step = self._take(table[-1])
        if self.job.kind != "prefill":
            return [step]
        geometry, prompt = self.sequence.pool.geometry, len(self.job.prompt.token_ids)
        pages = -(-prompt // geometry.page_size)
        handover = Handover(
            *(step, prompt, pages, geometry.page_size, geometry.layout, self.job.seed),
            exact=self.sequence.exact,
            pictures=self._names.pictures,
        )
        return [*events, *self._last_pieces(), handover]

    @cached_property
    def _history(self) -> History:
        """Made when the first token is chosen: a request that waits needs none."""
        return History(self._model.config.vocab_size, self.job.prompt.token_ids)

    def _place(self) -> tuple[int, int]:
        """First position of the next chunk's new rows, and how many before it run again."""
        start = self.sequence.length
        return start, self.start.replayed if start == self.hit else 0

    def _take(self, logits: NDArray[np.float64]) -> Step:
        """Choose the next token from one row [vocab]."""
        sampling, index = self.job.sampling, len(self._answer)
        adjusted = penalize(logits, sampling, self._history)
        if index < sampling.min_new_tokens:
            adjusted = adjusted.copy()
            barred = (self._model.tokenizer.eos_id, *sampling.stop_token_ids)
            adjusted[[i for i in barred if 0 <= i < len(adjusted)]] = -np.inf
        token = choose(adjusted, sampling, uniform(self.job.seed, index))
        finish, matched = self._record(token)
        logprob = 0.0
        top: tuple[tuple[int, float], ...] = ()
        if sampling.logprobs or sampling.top_logprobs:
            logprobs = log_softmax(logits)
            logprob, top = float(logprobs[token]), ranked(logprobs, sampling.top_logprobs)
        prompt_logprobs = tuple(self._prompt_logprobs) if sampling.prompt_logprobs and index == 0 else ()
        cached = self.hit if index == 0 else 0
        return Step(token, logprob, top, finish, matched, prompt_logprobs, cached)

    def _record(self, token: int) -> tuple[Finish | None, int | str | None]:
        """Count a token of the answer; say whether and why it is the last."""
        sampling = self.job.sampling
        self._answer.append(token)
        self._history.add(token)
        self._text.push(token)
        if token in sampling.stop_token_ids or (token == self._model.tokenizer.eos_id and not sampling.ignore_eos):
            return "stop", token
        if self._text.matched is not None:
            return "stop", self._text.matched
        return ("length", None) if len(self._answer) >= sampling.max_new_tokens else (None, None)

    def _filled_pages(self) -> Iterator[Piece]:
        size, length = self.sequence.pool.geometry.page_size, self.sequence.length
        filled = length // size if self.prefilling else -(-length // size)
        for index in range(self._pages_out, filled):
            yield Piece("page", index, wire.read_page(self.sequence, index))
        self._pages_out = filled

    def _last_pieces(self) -> Iterator[Piece]:
        for kind, index in expected_pieces(self.sequence.length, self.sequence.pool.geometry):
            if kind == "window":
                yield Piece(kind, index, wire.read_window_page(self.sequence, index))
            elif kind == "state":
                yield Piece(kind, index, wire.read_state(self.sequence))

    def _note_prompt(self, table: NDArray[np.float64]) -> None:
        """Row t of the table, the last of which stands at the sequence's end, predicts the token behind it."""
        first = self.sequence.length - len(table) + 1
        following = self.job.prompt.token_ids[first : first + len(table)]
        self._prompt_logprobs += [float(log_softmax(table[i])[token]) for i, token in enumerate(following)]

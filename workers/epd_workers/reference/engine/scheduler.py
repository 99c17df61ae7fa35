"""Which model step comes next, and what happens to its result. Synchronous: `engine.py` gives it a thread."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epd_workers.reference.cache.sequence import Sequence
from epd_workers.reference.engine.memory import Memory
from epd_workers.reference.engine.prefetch import Prefetcher
from epd_workers.reference.engine.publish import Publisher
from epd_workers.reference.engine.request import (
    Aborted,
    EngineFailed,
    Handover,
    InvalidRequest,
    Load,
    QueueFull,
    Step,
)
from epd_workers.reference.engine.run import Run
from epd_workers.reference.engine.slots import Slots
from epd_workers.reference.engine.store import ALONE, Stores
from epd_workers.reference.engine.tally import Tally
from epd_workers.reference.model.replay import PRESETS, early_layers

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Values

    from PIL.Image import Image
    from torch import Tensor

    from epd_workers.reference.cache.geometry import Geometry
    from epd_workers.reference.engine.job import Event, Job
    from epd_workers.reference.engine.request import Limits, ReplayState
    from epd_workers.reference.model.interface import Extend
    from epd_workers.reference.model.loaded import LoadedModel
    from epd_workers.reference.model.replay import Work

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class EncodeJob:
    """A picture to encode; `emit` takes the embeddings or the error."""

    image: Image
    emit: Callable[[Tensor | Exception], None]


class Scheduler:
    """Each step decodes one token of every running answer, then runs prompt chunks and at most one picture.

    `submit`, `abort`, `load`, `flush` and `close` may be called from any thread; `step` from one.

    Args:
        model: The weights.
        limits: How much is taken on at a time.
        stores: As `Engine`.

    Raises:
        ValueError: As `Engine`.
    """

    def __init__(self, model: LoadedModel, limits: Limits, stores: Stores = ALONE) -> None:
        self._model = model
        self._limits = limits
        self._changed = threading.Condition()
        self._slots = Slots(limits)
        geometry = model.geometry(limits.page_size, limits.cache_type)
        self._memory = Memory(geometry, limits, windows_shared=stores.windows is not None)
        replay = PRESETS[limits.replay] if limits.replay else None
        self._forward = model.bind(self._memory.pool, replay)
        self._layers = early_layers(replay, model.weights.config.text)
        self._prefetcher = Prefetcher(stores, limits, self._memory, self._layers)
        self._publisher = Publisher(stores, limits, self._memory, self._layers)
        self._tally = Tally(limits, geometry.window)
        self._waiting: dict[str, Run] = {}
        self._runs: dict[str, Run] = {}
        self._images: deque[EncodeJob] = deque()
        self._closed = ""
        self._stepper = 0
        self._ended: list[Sequence] = []

    def submit(self, job: Job) -> None:
        """Admit or queue a job.

        Raises:
            InvalidRequest: Its rid is in use.
            PromptTooLong: It can never fit.
            QueueFull: Too many wait.
            EngineFailed: The engine is closed.
        """
        with self._changed:
            self._require_open()
            if job.rid in self._slots:
                raise InvalidRequest(f"rid is {job.rid!r}: a request with this id is still in the engine")
            run = Run(job, Sequence(self._memory.pool), self._model, self._prefetcher.prefetch(job, self._wake))
            if self._slots.enter(job.rid, job.positions):
                self._admit(run)
            else:
                self._waiting[job.rid] = run
        self._prefetcher.start(run, lambda: self._matched(run))

    def submit_image(self, job: EncodeJob) -> None:
        """Queue a picture.

        Raises:
            QueueFull: Too many wait.
            EngineFailed: The engine is closed.
        """
        with self._changed:
            self._require_open()
            if len(self._images) >= self._limits.max_queued_requests:
                raise QueueFull(f"{len(self._images)} images are waiting, as many as may: try again later")
            self._images.append(job)
            self._changed.notify()

    def abort(self, rid: str) -> None:
        """Forget a job; its slot and pages are free when this returns. Unknown ids are fine: it may just have ended."""
        with self._changed:
            self._end(rid, None)

    def withdraw(self, job: Job) -> None:
        """Abort this very job, not a later one with the same id."""
        with self._changed:
            run = self._runs.get(job.rid) or self._waiting.get(job.rid)
            if run and run.job is job:
                self._end(job.rid, None)

    def abort_image(self, job: EncodeJob) -> None:
        """Forget a picture."""
        with self._changed:
            if job in self._images:
                self._images.remove(job)

    def load(self) -> Load:
        """Counts of this moment."""
        with self._changed:
            stats = self._memory.stats
            return Load(
                running=self._slots.running,
                waiting=self._slots.waiting,
                encoding=len(self._images),
                used_tokens=self._slots.used_tokens,
                max_total_tokens=self._slots.capacity_tokens,
                max_running_requests=self._limits.max_running_requests,
                max_queued_requests=self._limits.max_queued_requests,
                prompt_tokens=self._tally.prompt_tokens,
                generated_tokens=self._tally.generated_tokens,
                steps=self._tally.steps,
                cached_tokens=stats.held_pages * self._limits.page_size,
                lookups=stats.hits + stats.misses,
                hits=stats.hits,
                hit_tokens=stats.hit_tokens,
                evicted_pages=stats.evicted_pages,
                evicted_window_pages=stats.evicted_windows,
            )

    def replay(self) -> ReplayState:
        """Whether bounded replay has begun to run."""
        with self._changed:
            return self._tally.replay

    def flush(self) -> bool:
        """Forget all cached prefixes, unless requests run or wait; whether that was done."""
        with self._changed:
            if self._slots.running or self._slots.waiting:
                return False
            self._memory.clear()
            return True

    @property
    def geometry(self) -> Geometry:
        """Sizes of the caches."""
        return self._memory.geometry

    @property
    def closed(self) -> str:
        """Why nothing is accepted any more; empty while open."""
        return self._closed

    def close(self, reason: str) -> None:
        """Accept nothing more and end everything that is in."""
        with self._changed:
            self._closed = self._closed or reason
            for rid in [*self._waiting, *self._runs]:
                self._end(rid, None)
            while self._images:
                self._images.popleft().emit(EngineFailed(self._closed))
            self._changed.notify_all()

    def wait(self) -> bool:
        """Sleep until there is something to do; False once closed."""
        with self._changed:
            while not (self._closed or self._images):
                now = time.monotonic()
                blocked = [run.prefetch.deadline for run in self._runs.values() if run.prefetch and run.blocked(now)]
                if len(blocked) < len(self._runs):
                    break
                deadline = min(blocked, default=math.inf)
                self._changed.wait(None if math.isinf(deadline) else deadline - now)
            return not self._closed

    def step(self) -> None:
        """One round over everything that is running."""
        with self._changed:
            self._tally.steps += 1
            self._stepper = threading.get_ident()
            runs = list(self._runs.values())
            image = self._images[0] if self._images else None
        try:
            self._advance([run for run in runs if run.decoding], self._next_token)
            for run in runs:
                if run.job.kind == "resume" and not run.begun:
                    self._restore(run)
            self._advance(self._prompts(runs), self._next_chunk)
            if image:
                self._encode(image)
        finally:
            with self._changed:
                self._stepper = 0
                while self._ended:
                    self._ended.pop().release()

    def _prompts(self, runs: Values[Run]) -> list[Run]:
        """Whose next prompt chunks run in this step: as many as fit, in order, at least one that does not wait."""
        chosen: list[Run] = []
        size = room = self._limits.chunked_prefill_size
        for run in runs:
            if room <= 0:
                break
            if not self._begin(run):
                continue
            rows = run.next_rows(size)
            if rows > room and chosen:
                continue
            with self._changed:
                if not run.alive:
                    continue
                # To the end of the line: a long prompt does not delay the short ones behind it.
                self._runs[run.job.rid] = self._runs.pop(run.job.rid)
            chosen.append(run)
            room -= rows
        return chosen

    def _begin(self, run: Run) -> bool:
        """Let a prompt whose turn has come take over what is cached of it; False if none of its rows runs now."""
        try:
            with self._changed:
                if not (run.alive and run.prefilling) or run.blocked(time.monotonic()):
                    return False
                if run.begun:
                    return True
                run.begin(self._memory)
            run.take_over(self._layers)
            self._publisher.began(run.start)
        except Exception as error:  # noqa: BLE001 one request must not take the engine down
            _log.exception("%s cannot begin", run.job.rid)
            self._fail(run, error)
            return False
        return True

    def _next_chunk(self, run: Run) -> Extend:
        return run.next_chunk(self._memory, self._limits.chunked_prefill_size)

    def _next_token(self, run: Run) -> Extend:
        return run.next_token(self._memory)

    def _advance(self, runs: Values[Run], next_rows: Callable[[Run], Extend]) -> None:
        """Run the next rows of all in one call. If it fails, each alone, so that only the one at fault fails."""
        if not runs:
            return
        marks = [run.mark() for run in runs]
        try:
            with self._changed:
                extends = [next_rows(run) for run in runs]
            output = self._forward(extends)
        except Exception as error:  # noqa: BLE001 one request must not take the engine down
            _log.exception("model step failed for %s", [run.job.rid for run in runs])
            for run, mark in zip(runs, marks, strict=True):
                run.reset(mark)
            if len(runs) == 1:
                self._fail(runs[0], error)
            else:
                for run in runs:
                    self._advance([run], next_rows)
            return
        if not extends[0].decode:
            self._note_prefill(runs, extends, output.work)
        for run, extend, logits in zip(runs, extends, output.logits, strict=True):
            self._settle(run, extend, logits)

    def _note_prefill(self, runs: Values[Run], extends: Values[Extend], work: Work) -> None:
        with self._changed:
            self._tally.worked(work)
            for run, extend in zip(runs, extends, strict=True):
                self._tally.extended(extend)
                if run.sequence.length - len(extend.token_ids) + extend.replayed == run.hit:
                    self._tally.began(run.start)

    def _settle(self, run: Run, extend: Extend, logits: Tensor) -> None:
        try:
            events = run.after(extend, logits)
        except Exception as error:  # noqa: BLE001 nor must what its logits say
            _log.exception("the logits of %s cannot be used", run.job.rid)
            self._fail(run, error)
            return
        ends = bool(events and isinstance(events[-1], Step) and events[-1].finish)
        prompt_ends = not (extend.decode or run.prefilling)
        if ends or not extend.decode:
            # Without the lock: the pages stay until this step's end, even if the request is aborted.
            self._publisher.publish(run, prompt_ended=prompt_ends, ended=ends)
        with self._changed:
            if run.alive:
                if ends or prompt_ends:
                    self._memory.keep(run.sequence, run.key, run.job.prompt.salt, run.windows_from)
                self._memory.recede(run.sequence)
        self._deliver(run, events, chosen=0 if run.prefilling else 1)

    def _restore(self, run: Run) -> None:
        try:
            with self._changed:
                if not run.alive:
                    return
                run.reserve_restored(self._memory)
            step = run.restore()
        except Exception as error:  # noqa: BLE001 nor must its pieces
            _log.exception("what prefill sent for %s cannot be used", run.job.rid)
            self._fail(run, error)
            return
        self._deliver(run, [step])

    def _encode(self, job: EncodeJob) -> None:
        result: Tensor | Exception
        try:
            result = self._model.encode_image(job.image)
        except Exception as error:  # noqa: BLE001 nor must one picture
            _log.exception("image of size %s failed", job.image.size)
            result = EngineFailed(f"the model failed on this image: {error!r}")
        with self._changed:
            if job in self._images:
                self._images.remove(job)
                job.emit(result)

    def _fail(self, run: Run, error: Exception) -> None:
        with self._changed:
            if run.alive:
                self._end(run.job.rid, EngineFailed(f"the model failed on this request: {error!r}"))

    def _deliver(self, run: Run, events: Values[Event], *, chosen: int = 0) -> None:
        with self._changed:
            self._tally.generated_tokens += chosen
            if not run.alive:  # aborted while the step ran
                return
            for event in events:
                if isinstance(event, Handover) or (isinstance(event, Step) and event.finish):
                    self._end(run.job.rid, event)
                else:
                    run.job.emit(event)

    def _matched(self, run: Run) -> int:
        with self._changed:
            return self._memory.matched(run.key, run.job.prompt.salt)

    def _admit(self, run: Run) -> None:
        self._runs[run.job.rid] = run
        self._changed.notify()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _end(self, rid: str, last: Event | None) -> None:
        """Free what a job holds, admit the requests that waited for it, then end it; None means that it was aborted.

        Pages that a step may be working on are released at its end, unless it is the step itself that ends the
        job: a request that is admitted now takes no page before the next step.
        """
        run = self._runs.pop(rid, None) or self._waiting.pop(rid, None)
        if run is None:
            return
        run.alive = False
        if run.prefetch:
            run.prefetch.take()
        if self._stepper not in {0, threading.get_ident()}:
            self._ended.append(run.sequence)
        else:
            run.sequence.release()
        for admitted in self._slots.leave(rid):
            self._admit(self._waiting.pop(admitted))
        aborted = Aborted(f"{rid} was aborted") if run.job.kind == "prefill" else Step(-1, finish="abort")
        run.job.emit(last if last is not None else aborted)

    def _require_open(self) -> None:
        if self._closed:
            raise EngineFailed(self._closed)

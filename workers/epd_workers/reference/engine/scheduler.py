"""Which model step comes next, and what happens to its result. Synchronous: `engine.py` gives it a thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epd_workers.reference.engine.pool import Pool
from epd_workers.reference.engine.request import Aborted, EngineFailed, Handover, InvalidRequest, Load, QueueFull, Step
from epd_workers.reference.engine.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from PIL.Image import Image
    from torch import Tensor

    from epd_workers.reference.engine.job import Event, Job
    from epd_workers.reference.engine.request import Limits
    from epd_workers.reference.model.interface import Model

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class EncodeJob:
    """A picture to encode; `emit` takes the embeddings or the error."""

    image: Image
    emit: Callable[[Tensor | Exception], None]


class Scheduler:
    """Each step decodes one token of every running answer and runs at most one prompt chunk and one picture.

    `submit`, `abort`, `load` and `close` may be called from any thread; `step` from one.
    """

    def __init__(self, model: Model, eos_id: int, limits: Limits) -> None:
        self._model = model
        self._eos_id = eos_id
        self._limits = limits
        self._changed = threading.Condition()
        self._pool = Pool(limits)
        self._waiting: dict[str, Job] = {}
        self._runs: dict[str, Run] = {}
        self._images: deque[EncodeJob] = deque()
        self._closed = ""
        self._prompt_tokens = self._generated_tokens = self._steps = 0

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
            if job.rid in self._pool:
                raise InvalidRequest(f"rid is {job.rid!r}: a request with this id is still in the engine")
            if self._pool.enter(job.rid, job.positions):
                self._admit(job)
            else:
                self._waiting[job.rid] = job

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
            run = self._runs.get(job.rid)
            if job in {run.job if run else None, self._waiting.get(job.rid)}:
                self._end(job.rid, None)

    def abort_image(self, job: EncodeJob) -> None:
        """Forget a picture."""
        with self._changed:
            if job in self._images:
                self._images.remove(job)

    def load(self) -> Load:
        """Counts of this moment."""
        with self._changed:
            return Load(
                running=self._pool.running,
                waiting=self._pool.waiting,
                encoding=len(self._images),
                used_tokens=self._pool.used_tokens,
                max_total_tokens=self._pool.capacity_tokens,
                max_running_requests=self._limits.max_running_requests,
                max_queued_requests=self._limits.max_queued_requests,
                prompt_tokens=self._prompt_tokens,
                generated_tokens=self._generated_tokens,
                steps=self._steps,
            )

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
            self._changed.wait_for(lambda: self._closed or self._runs or self._images)
            return not self._closed

    def step(self) -> None:
        """One round over everything that is running."""
        with self._changed:
            self._steps += 1
            runs = list(self._runs.values())
            image = self._images[0] if self._images else None
        decoding = [run for run in runs if run.restored and not run.prefilling]
        if decoding:
            self._guarded(decoding, self._decode)
        for run in runs:
            if not run.restored:
                self._guarded([run], self._restore)
        prompts = [run for run in runs if run.alive and run.restored and run.prefilling]
        if prompts:
            self._guarded(prompts[:1], self._prefill)
        if image:
            self._encode(image)

    def _decode(self, runs: Sequence[Run]) -> None:
        logits = self._model.decode([run.last for run in runs], [run.cache for run in runs]).double().numpy()
        for run, row in zip(runs, logits, strict=True):
            self._deliver(run, [run.take(row)], chosen=1)

    def _restore(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self._deliver(run, [run.restore()])

    def _prefill(self, runs: Sequence[Run]) -> None:
        for run in runs:
            chunk = run.next_chunk(self._limits.chunked_prefill_size)
            events = run.after_chunk(chunk, self._model.forward(chunk, run.cache))
            with self._changed:
                self._prompt_tokens += len(chunk.token_ids)
                if run.alive:  # to the end of the line: a long prompt does not delay the short ones behind it
                    self._runs[run.job.rid] = self._runs.pop(run.job.rid)
            self._deliver(run, events, chosen=0 if run.prefilling else 1)

    def _encode(self, job: EncodeJob) -> None:
        result: Tensor | Exception
        try:
            result = self._model.encode_image(job.image)
        except Exception as error:  # noqa: BLE001 one picture must not take the engine down
            _log.exception("image of size %s failed", job.image.size)
            result = EngineFailed(f"the model failed on this image: {error!r}")
        with self._changed:
            if job in self._images:
                self._images.remove(job)
                job.emit(result)

    def _guarded(self, runs: Sequence[Run], work: Callable[[Sequence[Run]], None]) -> None:
        """Do the work; if the model fails, the requests it worked on fail, not the engine."""
        try:
            work(runs)
        except Exception as error:  # noqa: BLE001 nor must one request
            _log.exception("model step failed for %s", [run.job.rid for run in runs])
            with self._changed:
                for run in runs:
                    if run.alive:
                        self._end(run.job.rid, EngineFailed(f"the model failed on this request: {error!r}"))

    def _deliver(self, run: Run, events: Sequence[Event], *, chosen: int = 0) -> None:
        with self._changed:
            self._generated_tokens += chosen
            if not run.alive:  # aborted while the step ran
                return
            for event in events:
                if isinstance(event, Handover) or (isinstance(event, Step) and event.finish):
                    self._end(run.job.rid, event)
                else:
                    run.job.emit(event)

    def _admit(self, job: Job) -> None:
        self._runs[job.rid] = Run(job, self._model.new_cache(self._limits.page_size), self._model.config, self._eos_id)
        self._changed.notify()

    def _end(self, rid: str, last: Event | None) -> None:
        """Free what a job holds, admit who waited for it, then tell it; None says that it was aborted."""
        run = self._runs.pop(rid, None)
        job = run.job if run else self._waiting.pop(rid, None)
        if job is None:
            return
        if run:
            run.alive = False
        for admitted in self._pool.leave(rid):
            self._admit(self._waiting.pop(admitted))
        aborted = Aborted(f"{rid} was aborted") if job.kind == "prefill" else Step(-1, finish="abort")
        job.emit(last if last is not None else aborted)

    def _require_open(self) -> None:
        if self._closed:
            raise EngineFailed(self._closed)

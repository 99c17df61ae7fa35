"""What the engine takes from others' stores, and leaves there for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from epd_workers.reference.cache import wire
from epd_workers.reference.engine.prefetch import Recall

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_workers.reference.engine.job import Job
    from epd_workers.reference.engine.memory import Memory, Start
    from epd_workers.reference.engine.request import Limits
    from epd_workers.reference.engine.run import Run
    from epd_workers.reference.engine.store import Stores, WindowStore

_log = logging.getLogger(__name__)


class Exchange:
    """The stores as one engine uses them: a failing one costs what it would have given, never a request.

    Attributes:
        layers: How many layers' windows are exchanged, from the first one on: those that run on all rows.
    """

    def __init__(self, stores: Stores, limits: Limits, memory: Memory, layers: int) -> None:
        self.layers = layers
        self._stores = stores
        self._memory = memory
        # Windows of the pool take the place of those that a replay brings back; without it there is nothing to replace.
        self._prompts = limits.encoder_replay and limits.prefix_cache
        self._any = stores.windows is not None or stores.pages is not None

    def recall(self, job: Job, wake: Callable[[], None]) -> Recall | None:
        """What will find out what others have left of a prompt; None if it is to run whatever they have left."""
        wanted = self._prompts and self._any and job.kind != "resume" and not job.sampling.prompt_logprobs
        return Recall(self._stores, self._memory.geometry, self.layers, wake) if wanted else None

    def look_up(self, run: Run, matched: Callable[[], int]) -> None:
        """Start to find out.

        Args:
            run: Just queued or admitted, not begun.
            matched: Tokens of its prompt whose pages are here.
        """
        recall = run.recall
        if recall is None:
            return
        tokens = len(run.job.prompt.token_ids)
        try:
            chains = run.chain[: (tokens - 1) // self._memory.geometry.page_size]
            recall.start(chains, matched=matched(), longest=tokens - self._memory.rerun)
        except Exception:  # noqa: BLE001 the request is in already: it must not wait for what will not come
            _log.exception("nothing is looked up for %s", run.job.rid)
            recall.abandon()

    def began(self, start: Start) -> None:
        """Count rows that ran again, or did not have to."""
        windows = self._stores.windows
        if windows is None:
            return
        try:
            if start.again:
                windows.replayed(start.again)
            if start.avoided:
                windows.avoided(start.avoided)
        except Exception:  # noqa: BLE001 no request fails for a count
            _log.exception("the window pool does not count")

    def publish(self, run: Run, *, prompt_ended: bool, ended: bool) -> None:
        """Hand in what a step has completed: pages as they fill, windows at the prompt's end and at the answer's.

        Args:
            run: Whose; its step is done.
            prompt_ended: The step was the prompt's last.
            ended: No further row will run.
        """
        try:
            if run.job.kind != "resume":
                if self._prompts and self._any:
                    self._put_pages(run)
                    if prompt_ended or ended:
                        self._put_windows(run)
            elif ended and self._complete(run) and self._put_pages(run):
                self._put_windows(run)
        except Exception:  # noqa: BLE001 whatever a store does, the answer goes out
            _log.exception("nothing of %s is left for others", run.job.rid)

    def _complete(self, run: Run) -> bool:
        """Whether windows and pages of an answer that prefill began can both be handed in: either is useless alone."""
        windows = self._stores.windows
        return self._stores.pages is not None and windows is not None and windows.active and run.sequence.exact

    def _put_pages(self, run: Run) -> bool:
        """Hand in the full pages that have not been yet; False if one was dropped, and so those behind it."""
        pages, sequence, chain = self._stores.pages, run.sequence, run.chain
        if pages is None:
            return True
        full = min(len(chain), sequence.length // sequence.pool.geometry.page_size)
        for index in range(run.pages_shared, full):
            data = wire.read_page(sequence, index)
            if not pages.put(chain[index], data, replayed=not sequence.has_exact_page(index)):
                return False
            run.pages_shared = index + 1
        return True

    def _put_windows(self, run: Run) -> None:
        """Hand in the windows that a longer prompt may come back to and that have not been yet."""
        windows, exact = self._stores.windows, run.sequence.exact
        if windows is not None and windows.active and (exact or self._stores.approximate):
            self._put_each(windows, run, replayed=not exact)

    def _put_each(self, windows: WindowStore, run: Run, *, replayed: bool) -> None:
        chain, geometry = run.chain, self._memory.geometry
        for end in self._memory.boundaries(run.sequence.length):
            index = end // geometry.page_size
            if run.windows_shared < end and end - min(end, geometry.window) >= run.whole_from and index <= len(chain):
                data = wire.read_window(run.sequence, end, self.layers)
                windows.put(chain[index - 1], end, data, replayed=replayed)
                run.windows_shared = end

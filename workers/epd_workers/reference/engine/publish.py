"""Publishing: what the engine leaves in the stores for others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from epd_workers.reference.cache import wire

if TYPE_CHECKING:
    from epd_workers.reference.engine.memory import Memory, Start
    from epd_workers.reference.engine.request import Limits
    from epd_workers.reference.engine.run import Run
    from epd_workers.reference.engine.store import Stores, WindowStore

_log = logging.getLogger(__name__)


class Publisher:
    """Publishes one engine's pages and windows: a failing store costs what it would have given, never a request.

    Args:
        stores: Where they go.
        limits: Whether windows and pages of others can be used at all.
        memory: Sizes and boundaries.
        layers: How many layers' windows are published, from the first one on: those that run on all rows.
    """

    def __init__(self, stores: Stores, limits: Limits, memory: Memory, layers: int) -> None:
        self._layers = layers
        self._stores = stores
        self._memory = memory
        self._enabled = stores.used_with(limits)

    def began(self, start: Start) -> None:
        """Count rows that ran again, or did not have to."""
        windows = self._stores.windows
        if windows is None:
            return
        try:
            if start.replayed:
                windows.replayed(start.replayed)
            if start.avoided:
                windows.avoided(start.avoided)
        except Exception:  # noqa: BLE001 no request fails for a count
            _log.exception("the window pool cannot count")

    def publish(self, run: Run, *, prompt_ended: bool, ended: bool) -> None:
        """Hand in what a step has completed: pages as they fill, windows at the prompt's end and at the answer's.

        Args:
            run: Whose; its step is done.
            prompt_ended: The step was the prompt's last.
            ended: No further row will run.
        """
        try:
            if run.job.kind != "resume":
                if self._enabled:
                    self._put_pages(run)
                    if prompt_ended or ended:
                        self._put_windows(run)
            elif ended and self._complete(run) and self._put_pages(run):
                self._put_windows(run)
        except Exception:  # noqa: BLE001 whatever a store does, the answer goes out
            _log.exception("nothing of %s is published", run.job.rid)

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
                data = wire.read_window(run.sequence, end, self._layers)
                windows.put(chain[index - 1], end, data, replayed=replayed)
                run.windows_shared = end

"""Pages on their way from disk."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epd_workers.reference.cache.disk.page import StoredPage


class Fetch:
    """One question for a run of pages and its one answer: the leading ones that were found in time.

    Args:
        chains: Names of the pages, in order.
        deadline: Monotonic seconds after which nothing is added.
        done: Called once, when the answer is final, by whichever thread brings that about.
    """

    def __init__(self, chains: Sequence[bytes], deadline: float, done: Callable[[], None]) -> None:
        self.chains = tuple(chains)
        self.deadline = deadline
        self._done = done
        self._lock = threading.Lock()
        self._pages: list[StoredPage] = []
        self._final = False

    @property
    def ready(self) -> bool:
        """Whether the answer is final."""
        if not self._final and time.monotonic() >= self.deadline:
            self.settle()
        return self._final

    @property
    def pages(self) -> Sequence[StoredPage]:
        """What was found. Asking makes it final: what is not here now never will be."""
        self.settle()
        return tuple(self._pages)

    def add(self, page: StoredPage) -> bool:
        """Add the next page; False if nobody waits for it any more."""
        with self._lock:
            if self._final or time.monotonic() >= self.deadline:
                return False
            self._pages.append(page)
            return True

    def settle(self) -> None:
        """Make the answer final."""
        with self._lock:
            if self._final:
                return
            self._final = True
        self._done()

"""Prefetching: what others have left of a prompt is asked for while the prompt waits for its turn."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epd_workers.reference.cache.disk import StoredPage
    from epd_workers.reference.cache.geometry import Geometry
    from epd_workers.reference.engine.job import Job
    from epd_workers.reference.engine.memory import Memory
    from epd_workers.reference.engine.request import Limits
    from epd_workers.reference.engine.run import Run
    from epd_workers.reference.engine.store import PageFetch, Stores, WindowLookup
    from epd_workers.swapool.header import Window

_log = logging.getLogger(__name__)
# Pages spare far more than a window does, but a store may hang, as a folder on another machine does. A little longer
# than a store itself takes before it goes on with what it has.
PATIENCE: Final = 1.25


@dataclass(frozen=True)
class Prefetched:
    """What had come when the request's turn came.

    Attributes:
        first: Place of the first page.
        pages: Consecutive ones from there on.
        position: End of the window that was asked for; 0 if none was.
        window: The window; None if it is not there.
    """

    first: int = 0
    pages: Sequence[StoredPage] = ()
    position: int = 0
    window: Window | None = None


class Prefetch:
    """One request's prefetch: the pages that are not in this engine's memory, then the window at the end of all pages.

    None of its methods waits, and none passes on what a store raises: that counts as nothing found.

    Args:
        stores: Where to look.
        geometry: Sizes of what is asked for.
        layers: How many layers a window has.
        wake: Called whenever the prefetch may have become ready, by any thread that holds no lock of this object.

    Attributes:
        deadline: Monotonic seconds after which the request goes on with what has come.
    """

    def __init__(self, stores: Stores, geometry: Geometry, layers: int, wake: Callable[[], None]) -> None:
        self.deadline = math.inf
        self._stores = stores
        self._geometry = geometry
        self._layers = layers
        self._wake = wake
        self._lock = threading.Lock()
        self._settled = self._closed = self._asked = False
        self._fetch: PageFetch | None = None
        self._lookup: WindowLookup | None = None
        self._chains: Sequence[bytes] = ()
        self._first = self._longest = self._position = 0

    @property
    def ready(self) -> bool:
        """Whether nothing more will come."""
        lookup = self._lookup
        return self._settled or (lookup is not None and lookup.ready)

    def due(self, now: float) -> bool:
        """Whether the request need not wait any longer."""
        return now >= self.deadline or self.ready

    def start(self, chains: Sequence[bytes], *, matched: int, longest: int) -> None:
        """Ask.

        Args:
            chains: Digest of every page that the request may skip.
            matched: Tokens whose pages are here already.
            longest: Most tokens that the request may skip if it adopts a window.
        """
        self._chains, self._longest = chains, longest
        self._first = matched // self._geometry.page_size
        missing, pages = chains[self._first :], self._stores.pages
        try:
            if pages is not None and missing:
                self.deadline = time.monotonic() + PATIENCE
                self._fetch = pages.fetch(missing, self._fetched)
        except Exception:  # noqa: BLE001 whatever a store does, the request goes on
            _log.exception("no pages are fetched")
        if self._fetch is None:
            self._ask(0)
        else:
            # The answer may have come before there was anything to read it from.
            self._fetched()
        if self._closed:
            self.take()
        self._wake()

    def take(self) -> Prefetched:
        """Return what has come. Whatever comes later is dropped."""
        with self._lock:
            self._closed = self._settled = True
            fetch, lookup = self._fetch, self._lookup
            self._fetch = self._lookup = None
        pages: Sequence[StoredPage] = ()
        window = None
        try:
            window = None if lookup is None else lookup.take()
            pages = () if fetch is None else fetch.pages
        except Exception:  # noqa: BLE001 whatever a store does, the request goes on
            _log.exception("a store's answer cannot be used")
        return self._fit(pages, window)

    def abandon(self) -> None:
        """Give up before asking."""
        self._settled = True
        self._wake()

    def _fetched(self) -> None:
        """Go on with the window. Called twice, by the thread that asked and by the one that answered, in any order."""
        try:
            fetch = self._fetch
            if fetch is None or not fetch.ready:
                return
            count = len(self._fitting(fetch.pages))
        except Exception:  # noqa: BLE001 whatever a store does, the request goes on
            _log.exception("the pages fetched cannot be used")
            count = 0
        if self._first_to_ask():
            self._ask(count)

    def _first_to_ask(self) -> bool:
        with self._lock:
            first, self._asked = not self._asked, True
        return first

    def _ask(self, fetched: int) -> None:
        size = self._geometry.page_size
        position = min((self._first + fetched) * size, self._longest) // size * size
        windows, lookup = self._stores.windows, None
        try:
            if windows is not None and position > 0 and not self._closed:
                lookup = windows.begin(self._chains[position // size - 1], position, self._wake)
        except Exception:  # noqa: BLE001 whatever a store does, the request goes on
            _log.exception("no window is looked up")
        with self._lock:
            late = self._closed
            if lookup is None:
                self._settled = True
            elif not late:
                self._position, self._lookup, self.deadline = position, lookup, lookup.deadline
        if late and lookup is not None:
            lookup.take()
        self._wake()

    def _fit(self, pages: Sequence[StoredPage], window: Window | None) -> Prefetched:
        """Keep what has the right size: a store may not have checked."""
        geometry, rows = self._geometry, min(self._geometry.window, self._position)
        fits = window is not None and len(window.data) == self._layers * rows * geometry.window_bytes
        return Prefetched(self._first, self._fitting(pages), self._position, window if fits else None)

    def _fitting(self, pages: Sequence[StoredPage]) -> tuple[StoredPage, ...]:
        return tuple(takewhile(lambda page: len(page.data) == self._geometry.page_bytes, pages))


class Prefetcher:
    """Prefetches for one engine's requests.

    Args:
        stores: Where to look.
        limits: Whether windows and pages of others can be used at all.
        memory: What is here already.
        layers: How many layers a window has.
    """

    def __init__(self, stores: Stores, limits: Limits, memory: Memory, layers: int) -> None:
        self._stores = stores
        self._memory = memory
        self._layers = layers
        self._enabled = stores.used_with(limits)

    def prefetch(self, job: Job, wake: Callable[[], None]) -> Prefetch | None:
        """The prefetch of a request; None if all of its prompt is to run, whatever others have left."""
        wanted = self._enabled and job.kind != "resume" and not job.sampling.prompt_logprobs
        return Prefetch(self._stores, self._memory.geometry, self._layers, wake) if wanted else None

    def start(self, run: Run, matched: Callable[[], int]) -> None:
        """Start the prefetch of a request, if it has one.

        Args:
            run: Just queued or admitted, not begun.
            matched: Tokens of its prompt whose pages are here.
        """
        prefetch = run.prefetch
        if prefetch is None:
            return
        tokens = len(run.job.prompt.token_ids)
        try:
            chains = run.chain[: (tokens - 1) // self._memory.geometry.page_size]
            prefetch.start(chains, matched=matched(), longest=tokens - self._memory.rerun)
        except Exception:  # noqa: BLE001 the request is in already: it must not wait for what will not come
            _log.exception("nothing is looked up for %s", run.job.rid)
            prefetch.abandon()

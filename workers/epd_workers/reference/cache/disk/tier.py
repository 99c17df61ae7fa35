"""The disk tier: fetches runs of pages and stores pages; never raises, and nobody waits for it."""

from __future__ import annotations

import errno
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from epd_workers.reference.cache.disk.budget import Budget
from epd_workers.reference.cache.disk.fault import STUCK, Fault
from epd_workers.reference.cache.disk.fetch import Fetch
from epd_workers.reference.cache.disk.folder import Folder, occupied
from epd_workers.reference.cache.disk.page import HEADER, SPACE_BYTES, StoredPage
from epd_workers.reference.cache.disk.tally import DiskStats, Tally
from epd_workers.worker_threads import WorkerThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from prometheus_client import CollectorRegistry

    from epd_workers.reference.cache.disk.tally import Put

log = logging.getLogger(__name__)
READERS: Final = 2
FETCHES: Final = 64
# Pages of one long prompt come all at once.
PENDING_BYTES: Final = 64 << 20
PENDING_PAGES: Final = 16
PATIENCE: Final = 1.0
PERIOD: Final = 600.0
# A folder in which nothing may be removed stays full: looking at it for every page would help nobody.
AGAIN: Final = 1.0
# Looking through a large folder takes a while, a single call of a sound disk does not.
LONGEST_SWEEP: Final = 30.0
_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT}


class DiskPages:
    """Pages under their chains, in files that servers share and that outlive them.

    Losing the folder, some of its files or the disk costs hits, nothing else. Memory is bounded by the pages that wait
    to be written and by what the fetches under way were asked for; threads are `READERS` and one that writes.

    Args:
        folder: Where; made if it is not there.
        space: Digest of what a page's bytes depend on besides the tokens: 16 bytes.
        page_bytes: Bytes of a page.
        limit: Bytes that the folder may hold, all servers' files together.
        hours: A page that nobody used for that long is gone.
        registry: Where counts are found, as ``kv_disk_...``; nowhere by default.
        patience: Seconds after which a fetch has to do with what it found.

    Raises:
        ValueError: The limit leaves no room for a page, or one of the sizes is not valid.
    """

    def __init__(
        self,
        folder: Path,
        space: bytes,
        page_bytes: int,
        *,
        limit: int,
        hours: float,
        registry: CollectorRegistry | None = None,
        patience: float = PATIENCE,
    ) -> None:
        _check(space, page_bytes, limit, hours)
        self._folder = Folder(folder, space, page_bytes, 3600 * hours)
        self._page_bytes = page_bytes
        self._patience = patience
        self._budget = Budget(limit)
        self._fault = Fault(folder)
        self._looked = -AGAIN
        self._tally = Tally(lambda: self._budget.held)
        if registry is not None:
            registry.register(self._tally)
        try:
            self._folder.create()
        except OSError as error:
            self._fault.failed("put", error)
        depth = max(PENDING_PAGES, PENDING_BYTES // page_bytes)
        self._readers = WorkerThreads("kv-disk-get", _run, FETCHES, threads=READERS)
        self._writer = WorkerThreads("kv-disk-put", _run, depth, idle=lambda _: self._sweep(), period=PERIOD)
        self._writer.submit(self._sweep)

    @property
    def stats(self) -> DiskStats:
        """Counts, and the state of this moment."""
        stuck = self._stuck or self._writer.stuck(LONGEST_SWEEP)
        return self._tally.stats(STUCK if stuck else self._fault.word)

    def fetch(self, chains: Sequence[bytes], done: Callable[[], None]) -> Fetch:
        """Start to read pages in order, up to the first that is not there, and return at once.

        Args:
            chains: Digests of all tokens up to each page's end.
            done: Called once, when the answer is final: by any thread, perhaps before this returns.
        """
        fetch = Fetch(chains, time.monotonic() + self._patience, done)
        if not chains:
            fetch.settle()
        elif self._stuck or not self._readers.submit(partial(self._answer, fetch)):
            self._tally.got("busy")
            fetch.settle()
        return fetch

    def put(self, chain: bytes, data: bytes, *, replayed: bool) -> bool:
        """Hand in a page and return at once; it is stored soon.

        Args:
            chain: Digest of all tokens up to its end.
            data: The global entries and index keys of all owner layers, `page_bytes` bytes.
            replayed: Whether they were computed behind a bounded replay. An exact page takes the place of such a one.

        Returns:
            False if it was dropped.
        """
        if len(data) != self._page_bytes:
            log.error("a page of %d bytes where one has %d: dropped", len(data), self._page_bytes)
            self._tally.put("error")
            return False
        queued = self._writer.submit(partial(self._store, chain, StoredPage(data, replayed)))
        if not queued:
            self._tally.put("busy")
        return queued

    def drain(self, timeout: float) -> bool:
        """Wait until what was handed in is stored or dropped; False if that took longer than `timeout` seconds."""
        return self._writer.drain(timeout)

    def close(self, timeout: float = 1.0) -> bool:
        """Store what was handed in and end; False if that took longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        return all([self._writer.close(deadline), self._readers.close(deadline)])

    @property
    def _stuck(self) -> bool:
        return self._readers.stuck(2 * self._patience)

    def _answer(self, fetch: Fetch) -> None:
        try:
            for chain in fetch.chains:
                if fetch.ready or not self._read(fetch, chain):
                    break
        finally:
            fetch.settle()

    def _read(self, fetch: Fetch, chain: bytes) -> bool:
        """Add a page to a fetch; False if that was the last."""
        try:
            outcome, page = self._folder.read(chain)
        except OSError as error:
            self._fault.failed("get", error)
            self._tally.got("error")
            return False
        self._fault.worked("get")
        if page is None or fetch.add(page):
            self._tally.got(outcome)
            self._tally.moved("get", 0 if page is None else self._page_bytes)
            return page is not None
        self._tally.got("timeout")
        return False

    def _store(self, chain: bytes, page: StoredPage) -> None:
        self._tally.put(self._stored(chain, page))
        if self._budget.due:
            self._sweep()

    def _stored(self, chain: bytes, page: StoredPage) -> Put:
        size = occupied(self._folder.file_bytes)
        if not self._budget.admits(size) and time.monotonic() - self._looked >= AGAIN:
            self._sweep()
        if not self._budget.admits(size):
            return "full"
        try:
            written = self._written(chain, page)
        except OSError as error:
            self._fault.failed("put", error)
            return "full" if error.errno in _NO_ROOM else "error"
        self._fault.worked("put")
        if not written:
            return "known"
        self._budget.wrote(size)
        self._tally.moved("put", self._page_bytes)
        return "stored"

    def _written(self, chain: bytes, page: StoredPage) -> bool:
        try:
            return self._folder.write(chain, page)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self._fault.failed("put", error)
        # The disk is smaller than the limit, or others fill it: give way, and try once more.
        self._sweep(tight=True)
        return self._folder.write(chain, page)

    def _sweep(self, *, tight: bool = False) -> None:
        self._looked = time.monotonic()
        try:
            swept = self._folder.sweep(*self._budget.bounds(tight=tight))
        except OSError as error:
            self._fault.failed("put", error)
            return
        self._budget.saw(swept.held)
        self._tally.evicted("age", swept.aged)
        self._tally.evicted("size", swept.crowded)


def _run(_: int, task: Callable[[], None]) -> None:
    task()


def _check(space: bytes, page_bytes: int, limit: int, hours: float) -> None:
    wrong = []
    if len(space) != SPACE_BYTES:
        wrong.append(f"space has {len(space)} bytes: a digest has {SPACE_BYTES}")
    if page_bytes < 1:
        wrong.append(f"page_bytes is {page_bytes}: a page has 1 or more")
    if not hours > 0:
        wrong.append(f"hours is {hours}: pages are kept for more than 0")
    least = occupied(HEADER + page_bytes)
    if limit < least:
        wrong.append(f"limit is {limit}: the file of a single page takes {least}; give that or more")
    if wrong:
        raise ValueError("; ".join(wrong))

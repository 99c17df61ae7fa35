"""A server's connection to its pool: a configuration file opens, changes and closes it while the server runs."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from epd_workers.swapool import address
from epd_workers.swapool.history import History, PoolReport
from epd_workers.swapool.key import Key
from epd_workers.swapool.pool import WindowPool
from epd_workers.swapool.settings import PoolSettings, parse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epd_workers.swapool.key import Namespace
    from epd_workers.swapool.lookup import Lookup
    from epd_workers.swapool.metrics import Metrics

log = logging.getLogger(__name__)
PERIOD: Final = 1.0
__all__ = ["Connection", "PoolReport"]


@dataclass(frozen=True)
class _ActivePool:
    settings: PoolSettings
    engine: str
    pool: WindowPool
    history: History


class Connection:
    """The pool that a configuration file names at this moment, if it names one.

    Nothing of it raises into its user, nor waits: a file that is missing means no pool, one that cannot be followed
    leaves things as they are.

    Args:
        path: The file; see `epd_workers.swapool.settings`. Reading it again each period follows every way of replacing
            it, the swapped links of a mounted ConfigMap among them.
        space: Whose windows.
        metrics: Where to count.
        remote_only: Take no pool in this process's memory, because nobody but this process would find anything there.
        period: Seconds between two looks at the file.
        clock: Monotonic seconds, for what the report calls long.
    """

    def __init__(
        self,
        path: Path,
        space: Namespace,
        metrics: Metrics,
        *,
        remote_only: bool,
        period: float = PERIOD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._space = space
        self._metrics = metrics
        self._remote_only = remote_only
        self._period = period
        self._clock = clock
        self._active: _ActivePool | None = None
        self._text: bytes | None = None
        self._complaint = ""
        self._ended = threading.Event()
        self._follow()
        self._thread = threading.Thread(target=self._run, name="swapool-configuration", daemon=True)
        self._thread.start()

    @property
    def active(self) -> bool:
        """Whether there is a pool now."""
        return self._active is not None

    def begin(self, chain: bytes, position: int, done: Callable[[], None]) -> Lookup | None:
        """Start a lookup and return at once; None if there is no pool now.

        Args:
            chain: Digest of everything before `position`.
            position: The window's end, a page boundary.
            done: Called once when the lookup is settled, by any thread, possibly before this returns. Must not raise.
        """
        active = self._active
        if active is None:
            return None
        return active.pool.begin(Key(self._space, chain, position), active.settings.deadline, done)

    def put(self, chain: bytes, position: int, data: bytes, *, replayed: bool) -> None:
        """Hand in a window and return at once; it is stored soon, or dropped.

        Args:
            chain: Digest of everything before `position`.
            position: The window's end, a page boundary.
            data: Its rows.
            replayed: Whether they came from a bounded replay.
        """
        if (active := self._active) is not None:
            active.pool.put(Key(self._space, chain, position), data, active.settings.ttl, replayed=replayed)

    def replayed(self, tokens: int) -> None:
        """Count tokens that ran again for want of a window."""
        self._metrics.replayed(tokens)

    def avoided(self, tokens: int) -> None:
        """Count tokens that need not run again thanks to a window."""
        self._metrics.avoided(tokens)

    def report(self) -> PoolReport | None:
        """Return how the pool does; None if there is none, and is to be none."""
        active = self._active
        report = active.history.report(active.engine) if active else PoolReport("") if self._complaint else None
        return replace(report, fault="Misconfigured") if report and self._complaint else report

    def close(self) -> None:
        """Stop following the file, and give the pool up."""
        self._ended.set()
        self._thread.join()
        self._adopt(None)

    def _run(self) -> None:
        while not self._ended.wait(self._period):
            self._follow()
            self._metrics.sample()

    def _follow(self) -> None:
        try:
            text = self._path.read_bytes() if self._path.exists() else b"{}"
            if text != self._text:
                self._apply(parse(text))
                self._text, self._complaint = text, ""
        except Exception as error:  # noqa: BLE001 - no server fails for want of a pool
            # It is looked at again each period: what cannot be done now may be possible then.
            self._text = None
            self._complain(str(error))

    def _apply(self, wanted: PoolSettings | None) -> None:
        active = self._active
        if wanted is None or (self._remote_only and wanted.address.startswith("memory:")):
            self._adopt(None)
        elif active is not None and active.settings.address == wanted.address:
            self._active = replace(active, settings=wanted)
        else:
            engine, history = address.engine(wanted.address), History(self._clock)
            pool = WindowPool(engine, self._space.largest, metrics=self._metrics, history=history)
            self._adopt(_ActivePool(wanted, engine.name, pool, history))

    def _adopt(self, new: _ActivePool | None) -> None:
        old, self._active = self._active, new
        if old is not None:
            old.pool.close()
        if new is None:
            self._metrics.rest()
        if old is not None or new is not None:
            log.info("window pool: %s", new.engine if new else "none")

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            log.error("%s: %s; the window pool stays as it is", self._path, complaint)
        self._complaint = complaint

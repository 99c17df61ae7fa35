"""What a pool has done for its server so far, and the one word for what has long been wrong with it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_workers.swapool.lookup import Verdict
    from epd_workers.swapool.metrics import Put

Fault = Literal["", "Misconfigured", "Unreachable", "Full", "NoHits"]
UNREACHABLE: Final = 10.0
FULL: Final = 60.0
NO_HITS: Final = 3600.0
# Fewer lookups without a hit are chance.
ENOUGH: Final = 10
# What nobody has met for this long may be over; an idle server says nothing about its pool.
STALE: Final = 600.0
# What the server said, whether its user liked it or not.
ANSWERS: Final = frozenset({"hit", "miss", "expired", "mismatch"})


@dataclass(frozen=True)
class PoolReport:
    """A pool as its user sees it.

    Attributes:
        engine: ``memory``, ``valkey`` or ``mooncake``; empty where the configuration names none that can be used.
        fault: What has been wrong for so long that somebody should look; empty if nothing has. ``Misconfigured``: the
            configuration file cannot be followed; what it said before still holds. ``Unreachable``: no answer that
            counts. ``Full``: every window is refused. ``NoHits``: windows are stored and looked up, none is found.
        hits: Lookups that brought a window.
        misses: Lookups that did not, whatever the reason.
        stored: Windows stored.
        dropped: Windows handed in and not stored.
    """

    engine: str
    fault: Fault = ""
    hits: int = 0
    misses: int = 0
    stored: int = 0
    dropped: int = 0


class _Run:
    """Events of one kind that no event of the opposite kind has interrupted."""

    def __init__(self) -> None:
        self._first = self._latest = 0.0
        self.count = 0

    def add(self, now: float) -> None:
        if not self.count:
            self._first = now
        self._latest = now
        self.count += 1

    def end(self) -> None:
        self.count = 0

    def lasts(self, span: float, now: float) -> bool:
        """Whether they are spread over `span` seconds, and recent enough to still hold."""
        return self.count > 0 and self._latest - self._first >= span and now - self._latest <= max(span, STALE)


class History:
    """Counts what one pool did. Its methods may be called from any thread.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._hits = self._misses = self._stored = self._dropped = 0
        self._failures, self._refusals, self._vain = _Run(), _Run(), _Run()
        self._stored_in_vain = 0

    def got(self, verdict: Verdict) -> None:
        """Count a lookup."""
        hit, answered = verdict.result == "hit", verdict.result in ANSWERS
        with self._lock:
            self._hits += hit
            self._misses += not hit
            self._judge(failed=bool(verdict.fault), answered=answered)
            if hit:
                self._vain.end()
                self._stored_in_vain = 0
            elif answered:
                self._vain.add(self._clock())

    def put(self, result: Put, *, failed: bool = False) -> None:
        """Count a window handed in.

        Args:
            result: What became of it.
            failed: Whether that was a failure of the server.
        """
        with self._lock:
            stored = result == "stored"
            self._stored += stored
            self._stored_in_vain += stored
            self._dropped += not stored
            self._judge(failed=failed, answered=result in {"stored", "full", "taken"})
            if result == "full":
                self._refusals.add(self._clock())
            elif stored:
                self._refusals.end()

    def report(self, engine: str) -> PoolReport:
        """Return the counts, and the word.

        Args:
            engine: The kind of pool.
        """
        with self._lock:
            return PoolReport(engine, self._fault(), self._hits, self._misses, self._stored, self._dropped)

    def _judge(self, *, failed: bool, answered: bool) -> None:
        if failed:
            self._failures.add(self._clock())
        elif answered:
            self._failures.end()

    def _fault(self) -> Fault:
        now = self._clock()
        if self._failures.lasts(UNREACHABLE, now):
            return "Unreachable"
        if self._refusals.lasts(FULL, now):
            return "Full"
        if self._vain.count >= ENOUGH and self._stored_in_vain and self._vain.lasts(NO_HITS, now):
            return "NoHits"
        return ""

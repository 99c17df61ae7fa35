"""Signs of life of every watch, and whether they keep the process alive.

A process that answers its probe proves little: a watch can be dead behind a live event loop. So every watched kind has
to show a sign of life (an event, or a reopened stream, which happens every few minutes), and the Lease, which the
leader itself changes every second, has to come back through a watch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LEASE_BOUND: Final = 60.0
"""Seconds without an event on the Lease that we renew every second."""

WATCH_BOUND: Final = 420.0
"""Seconds without an event or a new stream on any other watch; streams end after 300 at the latest."""

HANDLER_BOUND: Final = 30.0
"""Seconds after an event that could not be handled within which another one has to be."""

STANDBY_BOUND: Final = 180.0
"""Seconds for which a standby may fail to read the Lease: an outage of the API server is not cured by restarts."""


class Liveness:
    """When each watch last showed a sign of life.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}
        self._failure: tuple[float, str] | None = None

    def expect(self, names: Iterable[str]) -> None:
        """Count from now on for these watches."""
        now = self._clock()
        self._last |= dict.fromkeys(names, now)

    def seen(self, name: str) -> None:
        """A watch showed a sign of life."""
        if name in self._last:
            self._last[name] = self._clock()

    def handler_failed(self, message: str) -> None:
        """An event could not be handled; one odd object is forgiven as soon as another event is handled."""
        if self._failure is None:
            self._failure = (self._clock(), message)

    def handled(self) -> None:
        """An event was handled."""
        self._failure = None

    def ages(self) -> dict[str, float]:
        """Seconds since the last sign of life of each expected watch."""
        now = self._clock()
        return {name: now - last for name, last in self._last.items()}

    def faults(self, lease: str) -> list[str]:
        """One line for each watch that has been silent for too long, and one while no event can be handled.

        Args:
            lease: Name of the watch on the Lease.
        """
        silent = [
            f"no sign of life from the watch on {name} for {age:.0f} s"
            for name, age in sorted(self.ages().items())
            if age > (LEASE_BOUND if name == lease else WATCH_BOUND)
        ]
        if self._failure is not None and (age := self._clock() - self._failure[0]) > HANDLER_BOUND:
            silent.append(f"no event has been handled since one failed {age:.0f} s ago: {self._failure[1]}")
        return silent

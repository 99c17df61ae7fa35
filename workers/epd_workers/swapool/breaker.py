"""Stops asking a server that does not answer, and finds out when it does again."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class Breaker:
    """Opens at the first failure, lets one call through per period, closes at the first success.

    A period doubles from `first` to `ceiling` while failures follow each other: one slow answer costs a moment, a dead
    server is asked rarely.

    Args:
        name: For logs.
        first: Seconds of the first period.
        ceiling: Seconds of the longest.
        clock: Monotonic seconds.
    """

    def __init__(
        self, name: str, *, first: float = 0.5, ceiling: float = 4.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._first = first
        self._ceiling = ceiling
        self._clock = clock
        self._lock = threading.Lock()
        self._period = 0.0
        self._until = 0.0
        self._generation = 0
        self._reason = ""

    @property
    def open(self) -> bool:
        """Whether the last answer that counted was a failure."""
        return self._period > 0

    @property
    def reason(self) -> str:
        """Why it is open; empty when it is closed."""
        return self._reason

    def admit(self) -> int | None:
        """Return a ticket to report with, or None: do not call.

        A call that is let through while the breaker is open starts the next period, so that one whose report never
        comes does not shut the server out for good.
        """
        with self._lock:
            if self._period:
                now = self._clock()
                if now < self._until:
                    return None
                self._until = now + self._period
            return self._generation

    def failed(self, ticket: int, reason: str) -> None:
        """Report a failure. Those of calls admitted before the last change count for nothing."""
        with self._lock:
            if ticket != self._generation:
                return
            opened = not self._period
            self._generation += 1
            self._period = self._first if opened else min(2 * self._period, self._ceiling)
            self._until = self._clock() + self._period
            if opened:
                self._reason = reason
        if opened:
            log.warning("%s: %s; answering without it, asking again in %.1f s", self._name, reason, self._period)

    def explain(self, reason: str) -> None:
        """Report why calls have failed, if that was found out only when they had been given up."""
        with self._lock:
            if not self._period or reason == self._reason:
                return
            self._reason = reason
        log.warning("%s: %s", self._name, reason)

    def succeeded(self, ticket: int) -> None:
        """Report an answer in time."""
        if not self._period:
            return
        with self._lock:
            if ticket != self._generation or not self._period:
                return
            self._generation += 1
            self._period = 0.0
            self._reason = ""
        log.info("%s answers again", self._name)

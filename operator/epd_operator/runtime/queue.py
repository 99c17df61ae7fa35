"""A work queue with client-go's rules, on the event loop's clock.

The tricky idea: a key is in one of three places, waiting in line, being worked on, or both wanted again *and* being
worked on ("dirty"). Dirty keys go back in line only when their worker is done, so one key never runs twice at once and
a change during its run is never lost.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

BASE_SECONDS: Final = 0.25
LIMIT_SECONDS: Final = 120.0
CALM_SECONDS: Final = 2.0
"""Shortest pause between two tries of a failing key, unless its spec changes."""


GATHER_SECONDS: Final = 0.1
"""How long an event waits for others about the same key: one change of a workload comes as a burst of them."""


class Meter(Protocol):
    """What the queue reports to."""

    def depth(self, value: int) -> None:
        """Keys in line."""

    def added(self) -> None:
        """A key entered the line."""

    def retried(self) -> None:
        """A key was put back after a failure."""

    def waited(self, seconds: float) -> None:
        """A key left the line after this long."""

    def worked(self, seconds: float) -> None:
        """A key was worked on for this long."""


class Silent:
    """A `Meter` that forgets everything."""

    def depth(self, value: int) -> None:
        """Forget."""

    def added(self) -> None:
        """Forget."""

    def retried(self) -> None:
        """Forget."""

    def waited(self, seconds: float) -> None:
        """Forget."""

    def worked(self, seconds: float) -> None:
        """Forget."""


class Closed(Exception):
    """The queue gives out no more keys."""


class WorkQueue(Generic[K]):
    """Keys waiting to be reconciled.

    Args:
        meter: Told about every movement.
        uniform: Source of the full jitter, `uniform(low, high)`.
    """

    def __init__(self, meter: Meter | None = None, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._meter: Meter = meter or Silent()
        self._uniform = uniform
        self._line: deque[K] = deque()
        self._entered: dict[K, float] = {}
        self._working: dict[K, float] = {}
        self._dirty: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._drained: list[asyncio.Future[None]] = []
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self._line)

    def failures(self, key: K) -> int:
        """Failures in a row."""
        return self._failures.get(key, 0)

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Want `key` reconciled now.

        A failing key is not hurried by events around it: it gets its next try after `CALM_SECONDS`, or at its
        back-off if that is sooner. `urgent` (its spec changed) forgets the failures.
        """
        if urgent:
            self.forget(key)
        if self._failures.get(key):
            self.add_after(key, CALM_SECONDS)
            return
        self._cancel(key)
        self._enter(key)

    def gather(self, key: K) -> None:
        """Want `key` reconciled soon, once for all events of a burst; a failing key after `CALM_SECONDS`."""
        self.add_after(key, CALM_SECONDS if self._failures.get(key) else GATHER_SECONDS)

    def add_after(self, key: K, seconds: float) -> None:
        """Want `key` reconciled in so many seconds; the sooner of two wishes counts."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due, self._due, key)

    def retry(self, key: K) -> float:
        """Put a failed `key` back with exponential back-off and full jitter; returns the seconds."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        seconds = self._uniform(0.0, min(LIMIT_SECONDS, BASE_SECONDS * 2.0 ** min(count - 1, 32)))
        self._meter.retried()
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: K) -> None:
        """End the back-off of `key`: it succeeded, or is gone."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key; call `done` with it afterwards.

        Raises:
            Closed: The queue was closed.
        """
        loop = asyncio.get_running_loop()
        while not self._line:
            if self._closed:
                raise Closed
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # the wake-up was meant for somebody who still listens
                raise
        if self._closed:
            raise Closed
        key = self._line.popleft()
        self._meter.waited(loop.time() - self._entered.pop(key))
        self._meter.depth(len(self._line))
        self._working[key] = loop.time()
        return key

    def done(self, key: K) -> None:
        """The worker is finished with `key`."""
        self._meter.worked(asyncio.get_running_loop().time() - self._working.pop(key))
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)
        if not self._working:
            for waiter in self._drained:
                if not waiter.done():
                    waiter.set_result(None)
            self._drained.clear()

    def close(self) -> None:
        """Give out no more keys and drop those in line."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._line.clear()
        self._entered.clear()
        self._dirty.clear()
        while self._waiters:
            self._wake()

    async def drain(self, seconds: float) -> bool:
        """After `close`: wait for the workers; False when some are still busy after so many seconds."""
        if not self._working:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drained.append(waiter)
        try:
            await asyncio.wait_for(waiter, seconds)
        except TimeoutError:
            return False
        return True

    def _enter(self, key: K) -> None:
        if self._closed or key in self._entered:
            return
        if key in self._working:
            self._dirty.add(key)
            return
        self._line.append(key)
        self._entered[key] = asyncio.get_running_loop().time()
        self._meter.added()
        self._meter.depth(len(self._line))
        self._wake()

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self._enter(key)

    def _cancel(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

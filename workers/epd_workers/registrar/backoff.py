"""Exponential delays with jitter, one per target: a sick peer is not hammered, and peers do not retry in step."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Backoff:
    """Remembers which targets failed lately.

    Args:
        first: Delay after the first failure, seconds.
        ceiling: Longest delay, seconds.
        clock: Monotonic seconds.
    """

    def __init__(self, first: float = 0.5, ceiling: float = 15.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._first = first
        self._ceiling = ceiling
        self._clock = clock
        self._failures: dict[str, tuple[int, float]] = {}

    def failed(self, target: str) -> float:
        """Note a failure.

        Returns:
            Seconds until the target may be tried again: between half and all of the doubled delay.
        """
        count = self._failures.get(target, (0, 0.0))[0] + 1
        delay = min(self._ceiling, self._first * 2.0 ** min(count - 1, 16)) * random.uniform(0.5, 1.0)  # noqa: S311
        self._failures[target] = (count, self._clock() + delay)
        return delay

    def succeeded(self, target: str) -> None:
        """Forget the target's failures."""
        self._failures.pop(target, None)

    def waiting(self, target: str) -> bool:
        """Whether it is too early to try the target again."""
        return target in self._failures and self._clock() < self._failures[target][1]

    def keep(self, targets: set[str]) -> None:
        """Forget targets that no longer exist."""
        for target in self._failures.keys() - targets:
            del self._failures[target]

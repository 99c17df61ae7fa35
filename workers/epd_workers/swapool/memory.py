"""Windows in this process's own memory."""

from __future__ import annotations

import heapq
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from epd_workers.swapool.engine import Full

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# What an entry costs beside its bytes: the objects that hold it.
OVERHEAD: Final = 512


@dataclass(frozen=True)
class _Entry:
    head: bytes
    data: bytes
    expiry: float
    cost: int


class Memory:
    """A dictionary with a byte cap, which drops what would expire first, and a time to live.

    Args:
        limit: Bytes, overhead included.
        clock: Monotonic seconds.
    """

    name = "memory"
    local = True

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._order: list[tuple[float, str]] = []
        self._bytes = 0

    @property
    def used(self) -> int:
        """Bytes held, overhead included."""
        return self._bytes

    def __len__(self) -> int:
        """Windows held; expired ones count until room is needed or they are asked for."""
        return len(self._entries)

    def sessions(self, count: int, size: int) -> Sequence[Memory]:  # noqa: ARG002 - nothing is buffered here
        """Return this very object: its calls may come from any thread."""
        return [self] * count

    def open(self, deadline: float) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._order.clear()
            self._bytes = 0

    def read(self, key: str, deadline: float) -> tuple[bytes, bytes] | None:  # noqa: ARG002 - it never waits
        """Return header and rows, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry.expiry <= self._clock():
                self._drop(key)
                return None
        return None if entry is None else (entry.head, entry.data)

    def write(self, key: str, head: bytes, data: bytes, ttl: float, deadline: float) -> None:  # noqa: ARG002
        """Store header and rows.

        Raises:
            Full: It is larger than the cap.
        """
        cost = len(head) + len(data) + len(key) + OVERHEAD
        if cost > self._limit:
            raise Full(f"{cost} bytes; the pool has {self._limit}")
        with self._lock:
            self._drop(key)
            while self._bytes + cost > self._limit:
                self._drop_first()
            expiry = self._clock() + ttl
            self._entries[key] = _Entry(head, data, expiry, cost)
            self._bytes += cost
            heapq.heappush(self._order, (expiry, key))
            # Replaced entries leave their place in the order behind.
            if len(self._order) > 2 * len(self._entries) + 16:
                self._order = [(entry.expiry, name) for name, entry in self._entries.items()]
                heapq.heapify(self._order)

    def _drop_first(self) -> None:
        expiry, key = heapq.heappop(self._order)
        if key in self._entries and self._entries[key].expiry == expiry:
            self._drop(key)

    def _drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.cost

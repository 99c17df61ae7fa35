"""Windows that wait to be handed to the pool, in a thread that may wait for the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from epd_workers.worker_threads import WorkerThreads

if TYPE_CHECKING:
    from epd_sglang.window_pool.rows import Departure

DEPTH: Final = 16
"""Windows that may wait; further ones are dropped, for the engine must not run out of pinned memory."""


class Store(Protocol):
    """What is used of `epd_workers.swapool.connection.Connection` for publishing."""

    def put(self, chain: bytes, position: int, data: bytes, *, replayed: bool) -> None:
        """Hand in a window and return at once."""


@dataclass(frozen=True)
class Parcel:
    """A window and its name.

    Attributes:
        chain: Digest of everything before `position`.
        position: The window's end.
        departure: Its rows.
    """

    chain: bytes
    position: int
    departure: Departure


class Outbox:
    """Hands windows to the pool in the order in which they were posted.

    Args:
        store: The pool.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = WorkerThreads("epd-window-outbox", self._hand_over, DEPTH)

    def post(self, parcel: Parcel) -> bool:
        """Take a window; False if too many wait. Never waits."""
        return self._thread.submit(parcel)

    def drain(self, timeout: float) -> bool:
        """Wait until all that was posted is handed over; False if that took longer than `timeout` seconds."""
        return self._thread.drain(timeout)

    def _hand_over(self, _: int, parcel: Parcel) -> None:
        # Approximate windows are never posted: see `pool`.
        self._store.put(parcel.chain, parcel.position, parcel.departure.data(), replayed=False)

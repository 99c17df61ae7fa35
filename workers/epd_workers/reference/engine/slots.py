"""Who holds slots and pages, and who waits for them. Pure bookkeeping; the scheduler's lock guards it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd_workers.reference.engine.request import PromptTooLong, QueueFull

if TYPE_CHECKING:
    from epd_workers.reference.engine.request import Limits


class Slots:
    """Admits in order of arrival, each request with all the pages it can ever need.

    Reserving the worst case up front means that a running request never has to give its pages back, and that the
    first in line cannot be overtaken for ever by smaller ones. Pages that only the prefix tree holds count as free:
    they are evicted when a request grows into its reservation.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._capacity = limits.max_total_tokens // limits.page_size
        self._held: dict[str, int] = {}
        self._queue: dict[str, int] = {}
        self._used = 0

    def __contains__(self, rid: str) -> bool:
        return rid in self._held or rid in self._queue

    @property
    def running(self) -> int:
        """Requests that hold pages."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def used_tokens(self) -> int:
        """Reserved tokens, in whole pages."""
        return self._used * self._limits.page_size

    @property
    def capacity_tokens(self) -> int:
        """Bound of `used_tokens`."""
        return self._capacity * self._limits.page_size

    def enter(self, rid: str, positions: int) -> bool:
        """Reserve for a request that will fill this many positions, or queue it.

        Returns:
            Whether it is admitted at once.

        Raises:
            PromptTooLong: It would not fit into an empty pool.
            QueueFull: It would have to wait and the queue is full.
        """
        pages = -(-positions // self._limits.page_size)
        if pages > self._capacity:
            raise PromptTooLong(
                f"prompt and answer need {positions} tokens: this engine holds {self.capacity_tokens}; "
                "shorten the prompt or lower max_new_tokens"
            )
        if not self._queue and self._fits(pages):
            self._hold(rid, pages)
            return True
        if len(self._queue) >= self._limits.max_queued_requests:
            raise QueueFull(f"{len(self._queue)} requests are waiting, as many as may: try again later")
        self._queue[rid] = pages
        return False

    def leave(self, rid: str) -> list[str]:
        """Forget a request, running or waiting.

        Returns:
            Requests that are admitted in its place, in order.
        """
        self._used -= self._held.pop(rid, 0)
        self._queue.pop(rid, None)
        admitted = []
        while self._queue:
            first, pages = next(iter(self._queue.items()))
            if not self._fits(pages):
                break
            del self._queue[first]
            self._hold(first, pages)
            admitted.append(first)
        return admitted

    def _fits(self, pages: int) -> bool:
        return len(self._held) < self._limits.max_running_requests and self._used + pages <= self._capacity

    def _hold(self, rid: str, pages: int) -> None:
        self._held[rid] = pages
        self._used += pages

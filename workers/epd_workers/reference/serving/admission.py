"""How much a server takes on, and whether it takes on anything at all."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from typing import TYPE_CHECKING

from epd_workers.reference.serving.errors import busy, invalid
from epd_workers.reference.transfer.deadline import within

if TYPE_CHECKING:
    from collections.abc import Iterator


class State(enum.StrEnum):
    """A server's life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Admission:
    """Counts the jobs that were let in. Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self.state = State.STARTING
        self.active = 0
        self._limit = limit
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.contextmanager
    def admit(self, jobs: int) -> Iterator[None]:
        """Hold a place for ``jobs`` jobs.

        Raises:
            ApiError: 503; the server is starting, draining or full. 400; so many never fit.
        """
        if jobs > self._limit:
            raise invalid(
                f"the request asks for {jobs} answers, this server holds {self._limit} at most: split it", "n"
            )
        if self.state is not State.READY:
            raise busy(f"this server is {self.state} and takes no requests", str(self.state))
        if self.active + jobs > self._limit:
            raise busy(f"{self.active} of {self._limit} places are taken, {jobs} are asked for", "overloaded")
        self.active += jobs
        self._idle.clear()
        try:
            yield
        finally:
            self.active -= jobs
            if not self.active:
                self._idle.set()

    async def drain(self, seconds: float) -> bool:
        """Refuse new jobs and wait for the others; False when some are left after ``seconds``."""
        self.state = State.DRAINING
        try:
            await within(seconds, self._idle.wait())
        except TimeoutError:
            return False
        return True

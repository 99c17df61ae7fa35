"""Threads that wait for the server, each with a session of its own."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

from epd_workers.worker_threads import WorkerThreads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_workers.swapool.engine import Session

log = logging.getLogger(__name__)
OPENING: Final = 1.0


class Job(Protocol):
    """One call of the server."""

    def run(self, session: Session) -> None:
        """Make it. Raises nothing."""


def workers(name: str, sessions: Sequence[Session], depth: int) -> WorkerThreads[Job]:
    """Start one thread for each session.

    A thread, and so its session's buffer, stays with a call until the call has returned, however late.

    Args:
        name: Of the threads.
        sessions: One for each thread.
        depth: Jobs that may wait.
    """

    def run(index: int, job: Job) -> None:
        job.run(sessions[index])

    def start(index: int) -> None:
        try:
            sessions[index].open(time.monotonic() + OPENING)
        except Exception as error:  # noqa: BLE001 - whatever it is, the first job meets it again and reports it
            log.debug("not ready yet: %s", error)

    def stop(index: int) -> None:
        sessions[index].close()

    return WorkerThreads(name, run, depth, threads=len(sessions), start=start, stop=stop)

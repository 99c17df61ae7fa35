"""Threads that wait for the server, so that nobody else does."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_workers.swapool.engine import Session

log = logging.getLogger(__name__)
OPENING: Final = 1.0


class Job(Protocol):
    """One call of the server."""

    def run(self, session: Session) -> None:
        """Make it. Raises nothing."""


class Lane:
    """A fixed number of threads, each with a session of its own, behind a queue of fixed length.

    A thread stays with a call until the call has returned, however late: only then does it, and so its buffer, take
    another. Nothing is ever started in its place.

    Args:
        name: Of the threads.
        sessions: One for each thread.
        depth: Jobs that may wait.
    """

    def __init__(self, name: str, sessions: Sequence[Session], depth: int) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(depth + len(sessions))
        self._depth = depth
        self._busy = [False] * len(sessions)
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(index, session), name=f"{name}-{index}", daemon=True)
            for index, session in enumerate(sessions)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> int:
        """Threads, and so buffers, that are with a call."""
        return sum(self._busy)

    def submit(self, job: Job) -> bool:
        """Queue a job; False if there is no room. Never waits."""
        if self._closed or self._jobs.qsize() >= self._depth:
            return False
        with contextlib.suppress(queue.Full):
            self._jobs.put_nowait(job)
            return True
        return False

    def drain(self, timeout: float) -> bool:
        """Wait until every job has run; False if that took longer than `timeout` seconds."""
        with self._jobs.all_tasks_done:
            return self._jobs.all_tasks_done.wait_for(lambda: not self._jobs.unfinished_tasks, timeout)

    def close(self, deadline: float) -> bool:
        """Let queued jobs run and the threads end; False if some had not by `deadline`, in monotonic seconds."""
        self._closed = True
        for _ in self._threads:
            with contextlib.suppress(queue.Full):
                self._jobs.put(None, timeout=max(0.0, deadline - time.monotonic()))
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self, index: int, session: Session) -> None:
        try:
            session.open(time.monotonic() + OPENING)
        except Exception as error:  # noqa: BLE001 - whatever it is, the first job meets it again and reports it
            log.debug("not ready yet: %s", error)
        while (job := self._jobs.get()) is not None:
            self._busy[index] = True
            try:
                job.run(session)
            finally:
                self._busy[index] = False
                self._jobs.task_done()
                del job
        self._jobs.task_done()
        session.close()

"""Threads that wait for the disk, so that nobody else does."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class Worker:
    """A fixed number of threads behind a queue of fixed length.

    Args:
        name: Of the threads.
        depth: Tasks that may wait.
        threads: How many there are.
        idle: What a thread does whenever nothing has come for `period` seconds.
        period: Seconds; None: it waits.
    """

    def __init__(
        self,
        name: str,
        depth: int,
        *,
        threads: int = 1,
        idle: Callable[[], None] = lambda: None,
        period: float | None = None,
    ) -> None:
        self._idle = idle
        self._period = period
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue(depth)
        self._began: list[float | None] = [None] * threads
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(index,), name=f"{name}-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def stuck(self, seconds: float) -> bool:
        """Whether every thread has been with the same task for that long."""
        now = time.monotonic()
        return all(began is not None and now - began > seconds for began in self._began)

    def submit(self, task: Callable[[], None]) -> bool:
        """Queue a task; False if there is no room. Never waits."""
        if not self._closed:
            with contextlib.suppress(queue.Full):
                self._tasks.put_nowait(task)
                return True
        return False

    def drain(self, timeout: float) -> bool:
        """Wait until every task has run; False if that took longer than `timeout` seconds."""
        with self._tasks.all_tasks_done:
            return self._tasks.all_tasks_done.wait_for(lambda: not self._tasks.unfinished_tasks, timeout)

    def close(self, deadline: float) -> bool:
        """Let queued tasks run and the threads end; False if some had not by `deadline`, in monotonic seconds."""
        self._closed = True
        for _ in self._threads:
            with contextlib.suppress(queue.Full):
                self._tasks.put(None, timeout=max(0.0, deadline - time.monotonic()))
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self, index: int) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=self._period)
            except queue.Empty:
                _safely(self._idle)
                continue
            if task is not None:
                self._began[index] = time.monotonic()
                _safely(task)
                self._began[index] = None
            self._tasks.task_done()
            if task is None:
                return
            del task


def _safely(task: Callable[[], None]) -> None:
    """Run a task whatever becomes of it: a thread that ended would leave those behind it undone for good."""
    try:
        task()
    except Exception:
        log.exception("pages on disk")

"""Threads that wait for something slow, a disk or a server, so that nobody else does."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)
Task = TypeVar("Task")


def _nothing(_: int) -> None:
    """What a thread does at its start, at its end and in between unless it has something to do."""


class WorkerThreads(Generic[Task]):
    """A fixed number of threads behind a queue of fixed length.

    A thread stays with a task until the task has returned, however late: only then does it, and so whatever belongs to
    this thread alone, take another. Nothing is ever started in its place. What raises is logged, and costs no thread: a
    thread that ended would leave the tasks behind it undone for good.

    Args:
        name: Of the threads.
        run: Does a task, given the thread's number, 0 to `threads` - 1.
        depth: Tasks that may wait.
        threads: How many there are.
        start: What each thread does first, given its number.
        stop: What each thread does last.
        idle: What a thread does whenever nothing has come for `period` seconds.
        period: Seconds; None: it waits.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[int, Task], None],
        depth: int,
        *,
        threads: int = 1,
        start: Callable[[int], None] = _nothing,
        stop: Callable[[int], None] = _nothing,
        idle: Callable[[int], None] = _nothing,
        period: float | None = None,
    ) -> None:
        self._name = name
        self._run = run
        self._start = start
        self._stop = stop
        self._idle = idle
        self._period = period
        self._depth = depth
        # Room for one end mark a thread: closing must not wait for a queue that is full.
        self._tasks: queue.Queue[Task | None] = queue.Queue(depth + threads)
        self._began: list[float | None] = [None] * threads
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(index,), name=f"{name}-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> int:
        """Threads that are with a task."""
        return sum(began is not None for began in self._began)

    def stuck(self, seconds: float) -> bool:
        """Whether every thread has been with the same task for that long."""
        now = time.monotonic()
        return all(began is not None and now - began > seconds for began in self._began)

    def submit(self, task: Task) -> bool:
        """Queue a task; False if there is no room. Never waits."""
        if self._closed or self._tasks.qsize() >= self._depth:
            return False
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
        self._safely(self._start, index)
        while True:
            try:
                task = self._tasks.get(timeout=self._period)
            except queue.Empty:
                self._safely(self._idle, index)
                continue
            if task is not None:
                self._began[index] = time.monotonic()
                self._safely(self._run, index, task)
                self._began[index] = None
            self._tasks.task_done()
            if task is None:
                break
            del task
        self._safely(self._stop, index)

    def _safely(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception:
            log.exception("%s: a task failed", self._name)

"""A lookup under way."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_workers.swapool.header import Window
    from epd_workers.swapool.metrics import Got


@dataclass(frozen=True)
class Verdict:
    """How a lookup ended.

    Attributes:
        result: As counted.
        window: What was found.
        fault: What is wrong with the server, if something is.
    """

    result: Got
    window: Window | None = None
    fault: str = ""


class Lookup:
    """One question and its one verdict: reached when the answer comes, the deadline passes or the caller decides.

    Args:
        deadline: Monotonic seconds after which an answer is too late.
        settled: Called once, with the verdict, by the thread that reaches it.
        done: Called after that, when the lookup is ready.
    """

    def __init__(
        self, deadline: float, settled: Callable[[Verdict], None], done: Callable[[], None] | None = None
    ) -> None:
        self.deadline = deadline
        self._settled = settled
        self._tell = done
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._verdict: Verdict | None = None

    @property
    def ready(self) -> bool:
        """Whether the verdict is reached."""
        return self._done.is_set()

    def wait(self) -> Window | None:
        """Return the window once it is there; None once it is certain not to come, at the deadline at the latest."""
        if not self._done.is_set():
            self._done.wait(max(0.0, self.deadline - time.monotonic()))
        return self.take()

    def take(self) -> Window | None:
        """Return the window if it is here now. If it is not, that is the verdict: it will not come later."""
        if self._done.is_set():
            return self._verdict.window if self._verdict else None
        overdue = time.monotonic() >= self.deadline
        fault = "no answer before the deadline" if overdue else ""
        self.settle(Verdict("timeout", fault=fault))
        return self._verdict.window if self._verdict else None

    def answer(self, verdict: Verdict) -> bool:
        """Bring the server's answer; False if it is too late."""
        if time.monotonic() > self.deadline:
            self.settle(Verdict("timeout", fault="the answer came after the deadline"))
            return False
        return self.settle(verdict)

    def settle(self, verdict: Verdict) -> bool:
        """Set the verdict, whatever the time; False if there is one already."""
        with self._lock:
            if self._verdict is not None:
                return False
            self._verdict = verdict
        # Counted before the caller goes on: the next lookup must find the breaker as this one left it.
        self._settled(verdict)
        self._done.set()
        if self._tell is not None:
            self._tell()
        return True

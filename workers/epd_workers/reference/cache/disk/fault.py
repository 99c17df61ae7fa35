"""What is wrong with the folder."""

from __future__ import annotations

import errno
import logging
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)
WORDS: Final = {
    errno.ENOSPC: "Full",
    errno.EDQUOT: "Full",
    errno.EROFS: "ReadOnly",
    errno.EACCES: "Denied",
    errno.EPERM: "Denied",
    errno.ENOENT: "Missing",
    errno.ENOTDIR: "Missing",
}
OTHER: Final = "Failing"
STUCK: Final = "Stuck"
# A disk that is full refuses one page and takes the next: the fault stays until it has taken them for that long.
HOLD: Final = 30.0


class Fault:
    """What last failed, in one word, until the same has worked again for a while.

    Args:
        root: The folder, for logs.
        clock: Monotonic seconds.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._lock = threading.Lock()
        self._faults: dict[str, tuple[str, float]] = {}

    @property
    def word(self) -> str:
        """What is wrong; empty while nothing is."""
        with self._lock:
            return next((fault for fault, _ in self._faults.values()), "")

    def failed(self, operation: str, error: OSError) -> None:
        """Record that something did not work."""
        fault = WORDS.get(error.errno or 0, OTHER)
        with self._lock:
            before, _ = self._faults.get(operation, ("", 0.0))
            self._faults[operation] = fault, self._clock()
        if fault != before:
            log.warning("pages on disk in %s: %s; going on without them", self._root, error)

    def worked(self, operation: str) -> None:
        """Record that it did."""
        if operation not in self._faults:
            return
        with self._lock:
            fault, since = self._faults.get(operation, ("", 0.0))
            over = bool(fault) and self._clock() - since >= HOLD
            if over:
                del self._faults[operation]
        if over:
            log.info("pages on disk in %s: %s no more", self._root, fault)

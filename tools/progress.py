"""What a person sees while something takes long: what is at work, how far it is, and since when.

On a terminal that is one line that moves; elsewhere (a pipe, a log of CI) a line when it begins, one a minute, and one
when it is done. Written by hand because set-up shows it, and set-up runs before there is an environment that could hold
a library.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ON_A_TERMINAL_SECONDS = 0.5
ELSEWHERE_SECONDS = 60.0
_BEGAN = time.monotonic()
_LOCK = threading.RLock()
_COLOURS = {"dim": "\033[2m", "green": "\033[32m", "red": "\033[31m", "yellow": "\033[33m", "bold": "\033[1m"}
_ERASE = "\r\033[K"
_STEPS: list[Step] = []
"""The steps at work; the last one is shown."""


def coloured(text: str, colour: str, *, stream: object = None) -> str:
    """Wrap a text in a colour when its stream is a terminal and ``NO_COLOR`` is not set."""
    target = sys.stderr if stream is None else stream
    wanted = bool(getattr(target, "isatty", bool)()) and not os.environ.get("NO_COLOR")
    return f"{_COLOURS[colour]}{text}\033[0m" if wanted else text


def say(text: str, colour: str | None = None) -> None:
    """Print one line to stderr: ``[   3.2 s] text``."""
    with _LOCK:
        erase = _ERASE if _STEPS and moves() else ""
        print(f"{erase}{_elapsed()} {coloured(text, colour) if colour else text}", file=sys.stderr, flush=True)
        if erase:
            _STEPS[-1].draw()


def interrupted() -> int:
    """Say that Ctrl-C was seen; return the exit status of shells for it."""
    print("interrupted; run the same command again to go on", file=sys.stderr)
    return 130


def moves() -> bool:
    """Say whether stderr is a terminal on which a line can be drawn over."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def duration(seconds: float) -> str:
    """Return a time in words: ``8 s``, ``4 min 10 s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _elapsed() -> str:
    return coloured(f"[{time.monotonic() - _BEGAN:6.1f} s]", "dim")


class Step:
    """Something that takes long, and how far it is.

    Args:
        text: What is done, such as ``building kubernetes``.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.began = time.monotonic()
        self._since = time.strftime("%H:%M:%S")
        self._far = ""

    def far(self, text: str) -> None:
        """Say how far it is, in counts of what was really done: ``812 of 2,851 packages``."""
        self._far = text

    def line(self) -> str:
        """Return what is done, how far it is and since when."""
        far = f": {self._far}" if self._far else ""
        return f"{self.text}{far}, since {self._since} ({duration(time.monotonic() - self.began)})"

    def draw(self) -> None:
        """Draw the line over itself, cut to the terminal's width."""
        room = max(_columns() - len("[9999.9 s] ") - 1, 0)
        line = self.line()
        # What is done is cut rather than how far it is: it stands in full where the step ends.
        if (excess := len(line) - room) > 0:
            line = f"{self.text[: max(len(self.text) - excess - 1, 0)]}…{line[len(self.text) :]}"[:room]
        print(f"{_ERASE}{_elapsed()} {line}", end="", file=sys.stderr, flush=True)

    def remind(self) -> None:
        """Show it once more, in the way of the place where it is shown."""
        with _LOCK:
            if _STEPS[-1] is self:
                if moves():
                    self.draw()
                else:
                    say(self.line())


@contextmanager
def step(text: str) -> Iterator[Step]:
    """Show that something is at work while the block runs, and how long it took once it is done.

    Args:
        text: What is done, such as ``building kubernetes``.
    """
    current = Step(text)
    done = threading.Event()
    with _LOCK:
        _STEPS.append(current)
        if moves():
            current.draw()
        else:
            say(text)
    every = ON_A_TERMINAL_SECONDS if moves() else ELSEWHERE_SECONDS

    def remind() -> None:
        while not done.wait(every):
            current.remind()

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    ended = "failed after"
    try:
        yield current
        ended = "done in"
    finally:
        done.set()
        thread.join()
        with _LOCK:
            _STEPS.remove(current)
            if moves():
                print(_ERASE, end="", file=sys.stderr, flush=True)
            say(f"{text}: {ended} {duration(time.monotonic() - current.began)}")

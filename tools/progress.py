"""What a person sees while something takes long: one line a step, with the seconds since the command began."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BEGAN = time.monotonic()
_LOCK = threading.Lock()
_COLOURS = {"dim": "\033[2m", "green": "\033[32m", "red": "\033[31m", "yellow": "\033[33m", "bold": "\033[1m"}


def coloured(text: str, colour: str, *, stream: object = None) -> str:
    """Wrap a text in a colour when its stream is a terminal and ``NO_COLOR`` is not set."""
    target = sys.stderr if stream is None else stream
    wanted = bool(getattr(target, "isatty", bool)()) and not os.environ.get("NO_COLOR")
    return f"{_COLOURS[colour]}{text}\033[0m" if wanted else text


def say(text: str, colour: str | None = None) -> None:
    """Print one progress line to stderr: ``[  3.2 s] text``."""
    elapsed = coloured(f"[{time.monotonic() - _BEGAN:6.1f} s]", "dim")
    with _LOCK:
        print(f"{elapsed} {coloured(text, colour) if colour else text}", file=sys.stderr, flush=True)


@contextmanager
def reminders(text: str, *, every_seconds: float = 20.0) -> Iterator[None]:
    """Say `text` now, and again with the minutes gone while the block still runs."""
    say(text)
    done = threading.Event()
    began = time.monotonic()

    def remind() -> None:
        while not done.wait(every_seconds):
            say(f"  ... still at it after {time.monotonic() - began:.0f} s: {text}")

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

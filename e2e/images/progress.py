"""Lines that say what happens and how long it has taken; programs' own output goes to a log file."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from e2e.images.recipe import ImageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TAIL = 30


@dataclass
class Progress:
    """Writes one line a step: seconds since the start, the image, what is done to it."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    started: float = field(default_factory=time.monotonic)

    def say(self, image: str, text: str) -> None:
        """Write one line."""
        seconds = f"{time.monotonic() - self.started:6.1f} s"
        if self.stream.isatty():
            seconds, image = f"\033[2m{seconds}\033[0m", f"\033[1m{image:<8}\033[0m"
        else:
            image = f"{image:<8}"
        print(seconds, image, text, file=self.stream, flush=True)


def run(argv: Sequence[str], log: Path) -> None:
    """Run a program, its output appended to `log`.

    Raises:
        ImageError: it failed; the message ends with the last lines of its output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        start = file.tell()
        status = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False).returncode
    if status:
        with log.open("rb") as file:
            file.seek(start)
            tail = file.read().decode(errors="replace").splitlines()[-_TAIL:]
        shown = "\n".join(f"    {line}" for line in tail)
        raise ImageError(f"{argv[0]} ended with status {status}. Its last lines (all of them: {log}):\n{shown}")

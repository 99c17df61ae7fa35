"""Programs of the machine: their output goes to a log file, and its end into the error when one fails."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tools.images.recipe import ImageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TAIL = 30


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

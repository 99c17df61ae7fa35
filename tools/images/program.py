"""Programs that build images: their output goes to a log file, and its end into the error when one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools import program
from tools.images.recipe import ImageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tools.progress import Step
    from tools.tally import Tally


def run(argv: Sequence[str], log: Path, step: Step | None = None, counted: Tally | None = None) -> None:
    """Run a program, its output appended to `log`.

    Args:
        argv: Program (a name of the table) and arguments.
        log: Receives its output.
        step: Is told how far the program is.
        counted: Counts that.

    Raises:
        ImageError: it failed; the message ends with the last lines of its output.
    """

    def read(line: str) -> None:
        if step is not None and counted is not None and (far := counted.read(line)):
            step.far(far)

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        done = program.watch(argv, read, log=file)
    if done.status:
        shown = "\n".join(f"    {line}" for line in done.tail)
        raise ImageError(f"{argv[0]} ended with status {done.status}. Its last lines (all of them: {log}):\n{shown}")

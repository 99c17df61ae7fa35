"""Makes the project's Python environment from its lock files: `python3 -m tools.environment FOLDER`.

It runs on the machine's own Python, so it uses the standard library only.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tools import program, progress, tally
from tools.program import Unfit

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"


def make(folder: Path) -> None:
    """Make the environment anew.

    Args:
        folder: Where it belongs; what lies there is removed.

    Raises:
        Unfit: It cannot be made; the message ends with the last lines of the program that failed.
    """
    python = folder / "bin" / "python"
    uv = folder / "bin" / "uv"
    into = ["--python", str(python)]
    bootstrap = ["--disable-pip-version-check", "--require-hashes", "-r", str(REQUIREMENTS / "bootstrap.txt")]
    locked = ["--require-hashes", "-r", str(REQUIREMENTS / "dev.txt")]
    commands: tuple[list[str | Path], ...] = (
        [sys.executable, "-m", "venv", "--clear", folder],
        [python, "-m", "pip", "install", "--quiet", *bootstrap],
        [uv, "pip", "install", *into, *locked],
        [uv, "pip", "install", *into, "--no-deps", "--no-build-isolation", "--editable", ROOT],
    )
    with progress.step(f"making the Python environment in {folder.name}") as step:
        for number, command in enumerate(commands, start=1):
            _run(command, step, f"step {number} of {len(commands)}")


def _run(argv: Sequence[str | Path], step: progress.Step, where: str) -> None:
    counted = tally.Uv()
    step.far(where)

    def read(line: str) -> None:
        if far := counted.read(line):
            step.far(f"{where}, {far}")

    # Its bars would fill more than a line.
    done = program.watch(argv, read, env={**os.environ, "UV_NO_PROGRESS": "1"})
    if done.status:
        tail = "\n".join(done.tail)
        raise Unfit(f"{' '.join(map(str, argv))} failed with status {done.status}:\n{tail}")


def main(argv: Sequence[str] | None = None) -> int:
    """Make the environment and return the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.environment", description=make.__doc__)
    parser.add_argument("folder", type=Path, help="where it belongs; what lies there is removed")
    try:
        make(parser.parse_args(argv).folder.absolute())
    except Unfit as error:
        print(progress.coloured(str(error), "red"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return progress.interrupted()
    return 0


if __name__ == "__main__":
    sys.exit(main())

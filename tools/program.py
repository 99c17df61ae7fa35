"""Programs of the machine: none is run that the table of `tools.packages` does not name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tools import packages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Word = str | os.PathLike[str]

KEPT_LINES = 30
"""How much of a program's output `watch` remembers for a message."""


class Unfit(Exception):
    """This machine cannot do what it is asked for; the message says why and what to do."""


class UnknownProgram(Exception):
    """A program that the table does not name: a fault of the caller's code, so nothing catches it."""


@dataclass(frozen=True)
class Watched:
    """How a watched program ended.

    Attributes:
        status: Its exit status.
        tail: The last lines of its output, `KEPT_LINES` at most.
    """

    status: int
    tail: tuple[str, ...]


def check(word: Word) -> None:
    """Refuse a program that the table does not name; this interpreter is always known.

    Args:
        word: A program's name or path.

    Raises:
        UnknownProgram: The table does not name it.
    """
    if os.fspath(word) != sys.executable and Path(word).name not in packages.names():
        raise UnknownProgram(
            f"{Path(word).name!r} is not in the table of tools/packages.py: add it there, with the Debian package that "
            "brings it, or set-up cannot know that it is needed."
        )


def path(name: str) -> str:
    """Return the absolute path of a program.

    Raises:
        UnknownProgram: The table does not name it.
        Unfit: It is not installed.
    """
    check(name)
    if (result := packages.which(name)) is not None:
        return result
    brings = [requirement.package for requirement in packages.REQUIREMENTS if requirement.name == name]
    installs = f"`python3 -m tools.setup test` installs the package {brings[0]}" if brings else ""
    way = installs or packages.PREREQUISITES.get(name) or "the project builds it"
    raise Unfit(f"The program {name!r} is not installed: {way}.")


def _words(argv: Sequence[Word]) -> list[str]:
    first, *rest = (os.fspath(word) for word in argv)
    check(first)
    return [first if os.sep in first else path(first), *rest]


def run(
    argv: Sequence[Word],
    *,
    text: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and keep what it prints.

    Args:
        argv: Program (a name of the table, or a path that ends in one) and arguments.
        text: Its standard input; none by default.
        cwd: Folder to run in.
        env: The whole environment, by default this process's.
        check: Raise when it fails.

    Raises:
        UnknownProgram: The table does not name it.
        Unfit: It is not installed.
        subprocess.CalledProcessError: It failed, and `check` was set.
    """
    return subprocess.run(
        _words(argv),
        # An empty text ends at once, as /dev/null does.
        input=text or "",
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
        check=check,
    )


def show(
    argv: Sequence[Word], *, cwd: Path | None = None, stdout: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end on our own terminal.

    Args:
        argv: Program and arguments, as for `run`.
        cwd: Folder to run in.
        stdout: ``subprocess.PIPE`` or ``DEVNULL`` to keep its standard output off the terminal.

    Raises:
        UnknownProgram: The table does not name it.
        Unfit: It is not installed.
    """
    return subprocess.run(_words(argv), cwd=cwd, stdout=stdout, text=True, check=False)


def start(argv: Sequence[Word], *, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a program, its standard streams connected to us by pipes, errors with the output.

    Raises:
        UnknownProgram: The table does not name it.
        Unfit: It is not installed.
    """
    return subprocess.Popen(
        _words(argv), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def watch(
    argv: Sequence[Word],
    line: Callable[[str], None],
    *,
    log: IO[str] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Watched:
    """Run a program to its end and hand out each line that it prints, as it comes.

    Args:
        argv: Program and arguments, as for `run`.
        line: Called with every line of its output (and errors), without the line's end.
        log: Receives every line, too.
        cwd: Folder to run in.
        env: The whole environment, by default this process's.

    Raises:
        UnknownProgram: The table does not name it.
        Unfit: It is not installed.
    """
    tail: deque[str] = deque(maxlen=KEPT_LINES)
    with subprocess.Popen(
        _words(argv),
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for printed in process.stdout:
            if log is not None:
                log.write(printed)
                log.flush()
            tail.append(printed.rstrip())
            line(tail[-1])
    return Watched(process.returncode, tuple(tail))

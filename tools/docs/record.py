"""Runs a command on a terminal of its own and draws what it showed: `python -m tools.docs.record FILE.svg -- COMMAND`.

The picture is of a real run and is drawn by rich. Only two things are changed in it: the folder of this checkout reads
`~/epd`, and no font is loaded from another host.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shlex
import struct
import sys
import termios
from fcntl import ioctl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tools.docs.page import ROOT
from tools.docs.terminal import Screen

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS: Final = 120
ROWS: Final = 50
_FONTS: Final = re.compile(r"@font-face\s*\{\{.*?\}\}\s*", re.DOTALL)
_FAMILY: Final = '"SFMono-Regular", Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace'


def shown(command: Sequence[str], columns: int = COLUMNS, *, quiet: bool = False) -> tuple[list[str], int]:
    """Run a command on a terminal.

    Args:
        command: Program and arguments; programs of this environment are found first.
        columns: Width of the terminal.
        quiet: Do not also show it on standard output.

    Returns:
        The lines that were on the terminal at the end, with their colours, and the exit status.
    """
    child, terminal = pty.fork()
    if child == 0:
        ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {**os.environ, "PATH": path, "TERM": "xterm-256color", "COLUMNS": str(columns)}
        os.chdir(ROOT)
        os.execvpe(command[0], list(command), {name: v for name, v in environment.items() if name != "NO_COLOR"})  # noqa: S606 - no shell is wanted
    written = b""
    while block := _block(terminal):
        written += block
        if not quiet:
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    screen = Screen()
    screen.write(written.decode(errors="replace").replace(str(ROOT), "~/epd"))
    return screen.lines(), status


def _block(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the last writer has gone
        return b""


def picture(lines: Sequence[str], title: str, columns: int = COLUMNS) -> str:
    """Lines of a terminal as SVG; the same lines give the same bytes."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, file=nowhere, width=columns, force_terminal=True, color_system="truecolor")
        for line in lines:
            console.print(Text.from_ansi(line), soft_wrap=True)
        style = _FONTS.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code, monospace", _FAMILY.replace('"', "'"))
        return console.export_svg(title=title, theme=MONOKAI, code_format=style, unique_id="terminal")


def main(words: Sequence[str] | None = None) -> int:
    """Entry point; the exit status is the command's."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs.record", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE.svg")
    parser.add_argument("--title", help="above the picture; default: the command")
    parser.add_argument("--columns", type=int, default=COLUMNS, metavar="N", help="width of the terminal (%(default)s)")
    parser.add_argument("--last", type=int, metavar="N", help="only the last N lines, for commands that say much")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what to run, behind --")
    given = parser.parse_args(words)
    lines, status = shown(given.command, given.columns)
    kept = lines[-given.last :] if given.last else lines
    prompt = [f"\x1b[1m$ {shlex.join(given.command)}\x1b[0m"]
    given.file.parent.mkdir(parents=True, exist_ok=True)
    given.file.write_text(picture([*prompt, *kept], given.title or "epd", given.columns), encoding="utf-8")
    print(f"wrote {given.file}: {len(kept)} lines; `{shlex.join(given.command)}` ended with {status}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

"""What the pages say that a command prints: run again and compared, or with `--write` put in its place.

Blocks of `console` hold commands behind `$ ` or `# ` (as root), each with its output. Those of `epd` that need no
cluster, and whose files exist, are run in the repository's root. A line `...` stands for any lines.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools import program
from tools.docs.page import ROOT, Page, pages

if TYPE_CHECKING:
    from collections.abc import Iterator

LANGUAGE: Final = "console"
OFFLINE: Final = frozenset({"validate", "explain", "render", "crd", "version"})
_PROMPTS: Final = ("$ ", "# ")
_ANY: Final = "..."
_SHELL: Final = frozenset("|<>&;")
_REMARK: Final = re.compile(r"\s{3,}|\s#\s")


@dataclass(frozen=True)
class Step:
    """One command of a block, and what the page says that it prints.

    Attributes:
        page: Path of the page.
        line: Of the command.
        command: As it is typed, without the prompt; continued lines joined.
        output: Lines behind it, without empty ones at the end; empty when the page shows none.
        after: Number of the first line of the output.
    """

    page: str
    line: int
    command: str
    output: tuple[str, ...]
    after: int

    @property
    def bare(self) -> str:
        """The command without what is said about it behind a `#` or a wide gap."""
        return _REMARK.split(self.command, maxsplit=1)[0]

    @property
    def words(self) -> list[str]:
        """The bare command in words."""
        return shlex.split(self.bare)

    @property
    def offline(self) -> bool:
        """Whether it can be run here and now: a command of `epd` without a shell's help, on files that exist."""
        words = self.words
        if words[:1] != ["epd"] or not set(words[1:2]) <= OFFLINE or _SHELL & set(self.bare):
            return False
        named = [word for word in words if word.endswith((".yaml", ".jsonl"))]
        return all((ROOT / word).exists() for word in named)


def steps(page: Page) -> Iterator[Step]:
    """Every command of the page's console blocks."""
    for fence in page.fences:
        if fence.language != LANGUAGE:
            continue
        lines = fence.text.splitlines()
        starts = [number for number, line in enumerate(lines) if _is_command(lines, number, line)]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            last = start
            while lines[last].endswith("\\"):
                last += 1
            command = " ".join(line.removesuffix("\\").strip() for line in lines[start : last + 1])
            output = "\n".join(lines[last + 1 : end]).rstrip().splitlines()
            # The fence's own line comes before its first.
            yield Step(page.path, fence.line + start + 1, command[2:].strip(), tuple(output), fence.line + last + 2)


def _is_command(lines: list[str], number: int, line: str) -> bool:
    return line.startswith(_PROMPTS) and not (number and lines[number - 1].endswith("\\"))


def printed(words: list[str]) -> list[str]:
    """What a command of `epd` prints here, on both streams."""
    script = Path(sysconfig.get_path("scripts"), words[0])
    lines: list[str] = []
    program.watch([script, *words[1:]], lines.append, cwd=ROOT, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120"})
    return [line.rstrip() for line in "\n".join(lines).rstrip().splitlines()]


def agrees(message: tuple[str, ...], real: list[str]) -> bool:
    """Whether the output on the page is the real one; `...` stands for any lines, none included."""
    if not message:
        return not real
    if message[0] == _ANY:
        return any(agrees(message[1:], real[skip:]) for skip in range(len(real) + 1))
    return bool(real) and message[0] == real[0] and agrees(message[1:], real[1:])


def stale(page: Page) -> list[tuple[Step, list[str]]]:
    """Commands whose output the page shows otherwise than it is, and what they print."""
    shown = [step for step in steps(page) if step.output and step.offline]
    real = [(step, printed(step.words)) for step in shown]
    return [(step, lines) for step, lines in real if not agrees(step.output, lines)]


def renewed(page: Page) -> str:
    """The page with what its commands print today; what is shortened by `...` is left to a person."""
    lines = page.text.splitlines()
    for step, real in reversed(stale(page)):
        if _ANY not in step.output:
            lines[step.after - 1 : step.after - 1 + len(step.output)] = real
    return "\n".join(lines) + "\n"


def main() -> int:
    """Entry point; the exit status is 1 when a page is out of date and stays so."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs.console", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put what the commands print into the pages")
    status = 0
    write = parser.parse_args().write
    for page in pages():
        for step, real in stale(page):
            print(f"{step.page}:{step.line}: `{step.command}` prints:\n" + "\n".join(real))
            status = 1 if not write or _ANY in step.output else status
        if write and (new := renewed(page)) != page.text:
            (ROOT / page.path).write_text(new, encoding="utf-8")
            print(f"wrote {page.path}")
    return status


if __name__ == "__main__":
    sys.exit(main())

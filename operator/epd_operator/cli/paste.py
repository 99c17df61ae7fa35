"""A server's command line as people paste it, reduced to flags and variables.

The tricky idea: recipes hold more than flags: variables before the program, a container runtime around it, line
continuations, a pipe behind. What starts SGLang is searched for; what stands before it is read for variables only.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_CONTINUATION: Final = re.compile(r"\\[ \t]*\r?\n")
_SHELL: Final = re.compile(r"\d*[<>].*|[|&;]+.*|\d*>&\d")
_MODULES: Final = ("sglang.launch_server", "sglang/launch_server.py")
_VARIABLE_OPTIONS: Final = ("-e", "--env")


class PasteError(ValueError):
    """What was pasted is no server's command line; the message says what is expected."""


@dataclass(frozen=True)
class Paste:
    """A command line.

    Attributes:
        argv: the words after the program.
        env: variables set before it.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def read(words: Sequence[str]) -> Paste:
    """Read what stands behind `--`: separate words, or the whole line quoted as one.

    Raises:
        PasteError: quotes that do not close, or no flags and no program that is SGLang's.
    """
    if len(words) == 1 and any(char.isspace() for char in words[0]):
        words = _split(words[0])
    start = _behind_program(words)
    before, argv = words[:start], words[start:]
    first = next((word for word in argv if word), "")
    if first and not before and not first.startswith("-"):
        raise PasteError(
            f"{first!r} is neither a flag nor SGLang's program: "
            "give flags, `python3 -m sglang.launch_server ...` or `sglang serve ...`"
        )
    return Paste(tuple(argv), _variables(before))


def variables(assignments: Sequence[str]) -> dict[str, str]:
    """Variables from `NAME=VALUE` words.

    Raises:
        PasteError: a word that is none.
    """
    found = {}
    for word in assignments:
        match = _ASSIGNMENT.fullmatch(word)
        if match is None:
            raise PasteError(f"{word!r} sets no variable: write NAME=VALUE")
        found[match[1]] = match[2]
    return found


def _split(line: str) -> list[str]:
    line = _CONTINUATION.sub(" ", line).strip()
    try:
        words = shlex.split(line.removeprefix("$ "), comments=False)
    except ValueError as error:
        raise PasteError(f"the command line cannot be split into words: {error}") from error
    # A backslash that ended the last line, and what a shell would do with the output.
    words = [word for word in words if word.strip() not in {"", "\\"} or word == ""]
    end = next((at for at, word in enumerate(words) if _SHELL.fullmatch(word)), len(words))
    return words[:end]


def _behind_program(words: Sequence[str]) -> int:
    """Index of the first word after the program; after leading variables when there is no program."""
    for at, word in enumerate(words):
        if word.endswith(_MODULES):
            return at + 1
        if word.rpartition("/")[2] == "sglang" and words[at + 1 : at + 2] == ["serve"]:
            return at + 2
    at = 0
    while at < len(words) and (words[at] == "env" or _ASSIGNMENT.fullmatch(words[at])):
        at += 1
    return at


def _variables(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for at, word in enumerate(words):
        option = at > 0 and words[at - 1] in _VARIABLE_OPTIONS
        match = _ASSIGNMENT.fullmatch(word.removeprefix("--env="))
        # In front of the program a word such as `--name=x` is no variable, because a name has no dash.
        if match is not None and (option or not word.startswith("-") or word.startswith("--env=")):
            found[match[1]] = match[2]
    return found

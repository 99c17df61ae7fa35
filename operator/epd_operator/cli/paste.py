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
    from collections.abc import Iterator, Mapping, Sequence

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_CONTINUATION: Final = re.compile(r"\\[ \t]*\r?\n")
_REDIRECTION: Final = re.compile(r"\d*[<>].*")
_COMMENT: Final = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?<![^\s;&|])#[^\n]*""", re.DOTALL)
"""A comment, or a quoted part, in which there is none; a hash inside a word does not begin one either."""
_MODULES: Final = ("sglang.launch_server", "sglang/launch_server.py")
_VARIABLE_OPTIONS: Final = ("-e", "--env")


class PasteError(ValueError):
    """The pasted text is not a server's command line; the message says what is expected."""


@dataclass(frozen=True)
class Paste:
    """A command line.

    Attributes:
        argv: The arguments after the program.
        env: Variables set before it.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def read(arguments: Sequence[str]) -> Paste:
    """Read what follows `--`: separate arguments, or the whole line quoted as one.

    Raises:
        PasteError: Quotes that do not close, or neither flags nor SGLang's program.
    """
    assigned: dict[str, str] = {}
    if len(arguments) == 1 and any(char.isspace() for char in arguments[0]):
        arguments, assigned = _command(arguments[0])
    start = _behind_program(arguments)
    before, argv = arguments[:start], arguments[start:]
    first = next((argument for argument in argv if argument), "")
    if first and not before and not first.startswith("-"):
        raise PasteError(
            f"{first!r} is neither a flag nor SGLang's program: "
            "give flags, `python3 -m sglang.launch_server ...` or `sglang serve ...`"
        )
    return Paste(tuple(argv), {**assigned, **_variables(before)})


def variables(assignments: Sequence[str]) -> dict[str, str]:
    """Variables from `NAME=VALUE` arguments.

    Raises:
        PasteError: An argument of another form.
    """
    result = {}
    for argument in assignments:
        match = _ASSIGNMENT.fullmatch(argument)
        if match is None:
            raise PasteError(f"{argument!r} does not set a variable: write NAME=VALUE")
        result[match[1]] = match[2]
    return result


def _command(text: str) -> tuple[list[str], dict[str, str]]:
    """The arguments of the server's command, and what the shell exports before it.

    Raises:
        PasteError: Quotes that do not close, or two servers in one paste.
    """
    exported: dict[str, str] = {}
    commands = [command for command in _commands(text) if command]
    servers = [command for command in commands if _server_at(command) is not None]
    if len(servers) > 1:
        raise PasteError(f"this starts {len(servers)} servers: give one command line at a time")
    for command in commands:
        if servers and command is servers[0]:
            break
        if command[0] == "export":
            exported |= _variables(command[1:])
        elif servers and all(_ASSIGNMENT.fullmatch(argument) for argument in command):
            continue  # a variable of the shell alone, which the server never sees
        elif not servers:
            return command, exported
    return (servers[0] if servers else []), exported


def _commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell text, without what is done with their output, and without comments."""
    text = _CONTINUATION.sub(" ", text).strip().removeprefix("$ ")
    text = _COMMENT.sub(lambda result: "" if result[0].startswith("#") else result[0], text)
    lexer = shlex.shlex(f"{text}\n", posix=True, punctuation_chars=";&|\n")
    lexer.whitespace = " \t\r"
    lexer.commenters = ""
    lexer.whitespace_split = True
    command: list[str] = []
    ended = False
    try:
        for token in lexer:
            if token and not token.strip(";&|\n"):
                # The command that reads the output is not of interest, as in `server | tee log`.
                if token.strip("\n") != "|":
                    yield command
                    command, ended = [], False
                else:
                    ended = True
            elif not ended and _REDIRECTION.fullmatch(token):
                ended = True
            elif not ended and token.strip() != "\\":
                command.append(token)
    except ValueError as error:
        raise PasteError(f"the command line cannot be split into words: {error}") from error
    yield command


def _server_at(arguments: Sequence[str]) -> int | None:
    """Index of the first argument after SGLang's program; None when it is not started."""
    for at, argument in enumerate(arguments):
        if argument.endswith(_MODULES):
            return at + 1
        if argument.rpartition("/")[2] == "sglang" and arguments[at + 1 : at + 2] == ["serve"]:
            return at + 2
    return None


def _behind_program(arguments: Sequence[str]) -> int:
    """Index of the first argument after the program; after leading variables when there is no program."""
    server = _server_at(arguments)
    if server is not None:
        return server
    at = 0
    while at < len(arguments) and (arguments[at] == "env" or _ASSIGNMENT.fullmatch(arguments[at])):
        at += 1
    return at


def _variables(arguments: Sequence[str]) -> dict[str, str]:
    result = {}
    for at, argument in enumerate(arguments):
        option = at > 0 and arguments[at - 1] in _VARIABLE_OPTIONS
        match = _ASSIGNMENT.fullmatch(argument.removeprefix("--env="))
        # In front of the program an argument such as `--name=x` is not a variable: a name has no dash.
        if match is not None and (option or not argument.startswith("-") or argument.startswith("--env=")):
            result[match[1]] = match[2]
    return result

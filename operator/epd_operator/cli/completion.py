"""`epd completion`: a script that teaches a shell the commands, options and values of `epd`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import shtab

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_FILES: Final = frozenset({"FILE", "PATH"})
"""How the parser calls an argument that names a file."""


def script(root: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell, from the parser: nothing is listed twice.

    Args:
        root: The complete command line; arguments that name files are marked as such in it.
        shell: bash, zsh or fish.
    """
    for action in _actions(root):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # how shtab is told
    text: str = shtab.complete(root, shell)
    return text


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every argument of a parser and of its commands."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to list them; shtab does the same
        yield action
        if isinstance(action.choices, dict):  # the commands
            for command in action.choices.values():
                yield from _actions(command)

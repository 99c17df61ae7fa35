"""What a supervisor needs of the program that it runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Health:
    """What came of a request that was made for this purpose.

    Attributes:
        fault: Why the server does not serve; empty if it does.
        alive: Whether the server itself is well: if so, restarting it would not help.
    """

    fault: str = ""
    alive: bool = True

    @classmethod
    def broken(cls, fault: str) -> Health:
        """Return that the server itself is at fault."""
        return cls(fault, alive=False)


@dataclass(frozen=True)
class Figures:
    """What the server knows of itself; None where it does not.

    Attributes:
        capacity: Bytes that it may hold.
        used: Bytes that it holds.
        windows: Windows that it holds.
        evicted: Windows dropped for want of room, since it started.
        expired: Windows dropped at the end of their time, since it started.
        refused: Windows that it had no room for, since it started.
        stores: Stores that it knows of.
    """

    capacity: int | None = None
    used: int | None = None
    windows: int | None = None
    evicted: int | None = None
    expired: int | None = None
    refused: int | None = None
    stores: int | None = None


class Program(Protocol):
    """A server that runs as a process of its own."""

    @property
    def name(self) -> str:
        """For logs and metrics."""

    @property
    def grace(self) -> float:
        """Seconds that it may take to end."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that it gets unless this process has them set."""

    @property
    def descriptors(self) -> Sequence[int]:
        """Open files that it inherits; closed on this side once it has them."""

    def command(self) -> Sequence[str | Path]:
        """Return the command line.

        Raises:
            MissingProgram: It is not installed.
        """

    async def health(self) -> Health:
        """Return whether it serves. May take for ever: the caller gives up."""

    async def figures(self) -> Figures:
        """Return what it knows. May take for ever: the caller gives up.

        Raises:
            Exception: It does not answer.
        """


class MissingProgram(Exception):
    """The server cannot run here; the message says what to install."""


def installed(package: str, *path: str) -> Path:
    """Return a program that a Python package brings along, without loading the package.

    Raises:
        MissingProgram: It is not there.
    """
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        program = Path(folder, *path)
        if os.access(program, os.X_OK):
            return program
    raise MissingProgram(f"{'/'.join((package, *path))} is not installed")

"""How far a program is, counted from the lines that it prints; nothing is estimated."""

from __future__ import annotations

import re
from typing import Protocol


class Tally(Protocol):
    """Counts what a program has done by what it prints."""

    def read(self, line: str) -> str | None:
        """Take in a line; return how far it is where that changed."""


class Apt:
    """`apt-get install`: how many of the packages are fetched, and then set up."""

    def __init__(self) -> None:
        self._total = self._fetched = self._done = 0

    def read(self, line: str) -> str | None:
        """Take in a line; return how far it is where that changed."""
        if header := re.match(r"(\d+) upgraded, (\d+) newly installed", line):
            self._total = int(header[1]) + int(header[2])
        elif line.startswith("Get:") and self._total:
            self._fetched += 1
            return f"{self._fetched} of {self._total} packages fetched"
        elif line.startswith("Setting up "):
            self._done += 1
            return f"{self._done} of {self._total} packages set up"
        return None


class Debootstrap:
    """`debootstrap`: how many packages it has fetched, and then of these set up."""

    def __init__(self) -> None:
        self._fetched: set[str] = set()
        self._done: set[str] = set()

    def read(self, line: str) -> str | None:
        """Take in a line; return how far it is where that changed."""
        match line.split():
            case ["I:", "Validating", package, _]:
                self._fetched.add(package)
                return f"{len(self._fetched)} packages fetched"
            case ["I:", "Configuring", package] if (name := re.split(r":|\.\.\.", package)[0]) in self._fetched:
                self._done.add(name)
                return f"{len(self._done)} of {len(self._fetched)} packages set up"
            case ["I:", "Unpacking", *_]:
                return "unpacking"
            case _:
                return None


class Image:
    """`buildah bud`: its step, and how many of the locked distributions pip has collected in it."""

    def __init__(self) -> None:
        self._distributions = self._collected = 0
        self._step = ""

    def read(self, line: str) -> str | None:
        """Take in a line; return how far it is where that changed."""
        if step := re.match(r"(?:\[\d+/\d+\] )?STEP (\d+)/(\d+)", line):
            self._step = f"step {step[1]} of {step[2]}"
            return self._step
        if locked := re.fullmatch(r"locked distributions: (\d+)", line):  # as images/dependencies.sh says it
            self._distributions = int(locked[1])
        if line.startswith("Ignoring "):  # not meant for this platform
            self._distributions -= 1
        if line.startswith("Collecting "):
            self._collected += 1
            return f"{self._step}, {self._collected} of {self._distributions} distributions collected"
        if line.startswith("Installing collected packages"):
            return f"{self._step}, installing"
        return None


class GoBuild:
    """`go build -v`: how many of the packages that the cache does not hold are compiled.

    Args:
        stale: How many those are.
    """

    def __init__(self, stale: int) -> None:
        self._stale = stale
        self._compiled = 0

    def read(self, line: str) -> str | None:
        """Take in a line; return how far it is where that changed."""
        if re.fullmatch(r"[\w.~/-]+", line):
            self._compiled += 1
            return f"{self._compiled:,} of {self._stale:,} packages"
        return None


class GoModules:
    """`go` while it resolves: how many modules it has downloaded."""

    def __init__(self) -> None:
        self._modules = 0

    def read(self, line: str) -> str | None:
        """Take in a line; return how far it is where that changed."""
        if line.startswith("go: downloading "):
            self._modules += 1
            return f"{self._modules:,} modules downloaded"
        return None


class Uv:
    """`uv pip install`: which large files are on their way, and how many distributions it has prepared."""

    def __init__(self) -> None:
        self._coming: list[str] = []
        self._resolved = ""

    def read(self, line: str) -> str | None:
        """Take in a line; return how far it is where that changed."""
        match line.split():
            case ["Resolved", count, *_]:
                self._resolved = count
            case ["Downloading", name, *size]:
                self._coming.append(" ".join([name, *size]))
            case ["Downloaded", name]:
                self._coming = [each for each in self._coming if each.split()[0] != name]
            case ["Prepared", count, *_]:
                return f"{count} distributions ready, installing"
            case _:
                return None
        coming = f", downloading {', '.join(self._coming)}" if self._coming else ""
        return f"{self._resolved} distributions{coming}"

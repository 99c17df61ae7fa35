"""What the tests of `epd` have for running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Answer:
    """What a run of `epd` came to."""

    status: int
    out: str
    err: str


class Epd(Protocol):
    """Runs `epd` in this process."""

    def __call__(self, *words: str) -> Answer: ...


class Write(Protocol):
    """Writes a file, a good document by default, into the working directory, which is a fresh one; gives its name."""

    def __call__(self, text: str | bytes = ..., name: str = ...) -> str: ...

"""Text files and what can be wrong with one before it is YAML."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from epd_operator.api.names import GROUP, KIND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STDIN: Final = "<stdin>"
SUFFIXES: Final = (".yaml", ".yml", ".json")
MAX_BYTES: Final = 16 * 2**20
"""An object in a cluster is at most 1.5 MiB, so a much larger file is not a manifest."""

_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_OURS: Final = re.compile(rf"""{KIND}|apiVersion["']?[ \t]*:[ \t]*["']?{re.escape(GROUP)}/""")
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")


class ReadError(Exception):
    """A file that cannot be used.

    Attributes:
        message: What is wrong and what to do, without the place; it follows the name of the file.
        line: 1-based; 0 when the file as a whole is meant.
        column: 1-based; 0 when the line as a whole is meant.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column


@dataclass(frozen=True)
class Source:
    """One text.

    Attributes:
        name: As the user wrote it, or `<stdin>`.
        text: Decoded, without a byte order mark.
    """

    name: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """The lines without their ends, as YAML counts them."""
        return _BREAK.split(self.text)

    @property
    def mentions_us(self) -> bool:
        """Whether one of our objects can be in it at all."""
        return mentions_us(self.text)


def mentions_us(text: str) -> bool:
    """Whether one of our objects can be in a text at all: its kind, or its group as the group of an object."""
    return _OURS.search(text) is not None


def expand(paths: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """The files behind the names on a command line, each with whether it was named itself.

    Folders are searched without those whose name starts with a dot; their regular files come sorted.
    """
    for path in paths:
        if path == "-" or not Path(path).is_dir():
            yield path, True
            continue
        for folder, folders, files in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(files):
                path_of = Path(folder, name)
                # A pipe would be waited for, and a link to nothing, as editors leave them, holds no manifest.
                if name.endswith(SUFFIXES) and path_of.is_file():
                    yield str(path_of), False


def read(path: str) -> Source:
    """Read one file, or standard input for `-`.

    Raises:
        ReadError: It is missing, unreadable, too large or not text.
    """
    try:
        if path == "-":
            return Source(STDIN, decode(sys.stdin.buffer.read(MAX_BYTES + 1)))
        with Path(path).open("rb") as file:
            return Source(path, decode(file.read(MAX_BYTES + 1)))
    except OSError as error:
        raise ReadError(f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the name
        raise ReadError(f"cannot be read: {error}") from error


def decode(raw: bytes) -> str:
    """Text of a file; UTF-8, or UTF-16 with the mark that Windows writes.

    Raises:
        ReadError: Too large, or not in these encodings.
    """
    if len(raw) > MAX_BYTES:
        raise ReadError(f"is larger than {MAX_BYTES // 2**20} MiB: give the manifests alone, or in several files")
    wide = raw.startswith(_UTF16)
    try:
        return raw.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        if wide:
            raise ReadError("is not valid UTF-16: save it as UTF-8") from error
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise ReadError(f"is not UTF-8 (byte 0x{raw[error.start]:02x}): save it as UTF-8", line, column) from error

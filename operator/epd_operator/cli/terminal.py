"""Text for a terminal or a file: colours where they help, and nothing that a document could smuggle in."""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TextIO

_CODES: Final = {"red": "31;1", "yellow": "33;1", "green": "32;1", "bold": "1", "dim": "2"}
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters with line breaks, surrogates, and what turns the direction of writing."""


@dataclass(frozen=True)
class Style:
    """How text is marked.

    Attributes:
        coloured: Whether they are at all.
    """

    coloured: bool

    def __call__(self, mark: str, text: str) -> str:
        """The text, made harmless, in a colour or weight."""
        return f"\x1b[{_CODES[mark]}m{clean(text)}\x1b[0m" if self.coloured else clean(text)


def style_of(stream: TextIO) -> Style:
    """Colours on a terminal, unless NO_COLOR or a dumb terminal says otherwise."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Style(wanted and stream.isatty())


def clean(text: str) -> str:
    """One line of text with unprintable characters escaped: nothing in it can break the line or steer a terminal.

    Text from a document or a file name goes through here before our own colours are added.
    """
    return _UNPRINTABLE.sub(lambda result: result[0].encode("unicode_escape").decode("ascii"), text)


def write(line: str, stream: TextIO) -> None:
    """Print one line that is clean already, with what the stream's encoding lacks escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    safe = line if line.isascii() else line.encode(encoding, "backslashreplace").decode(encoding)
    print(safe, file=stream)


def width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )

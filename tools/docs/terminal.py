"""A terminal small enough to read: turns what a program wrote into the lines that a person would have seen.

Known are the codes that our programs and rich write: colours, back to the start of the line, up, erase, and the rest of
the control sequences as nothing to see. Anything else is printed as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_PART: Final = re.compile(
    r"""\x1b\[([?\d;]*)([A-Za-z])             # a control sequence: its arguments and its letter
      | \x1b\][^\x07\x1b]*(?:\x07|\x1b\\)  # a title or a link: nothing to see
      | (\r) | (\n) | ([^\x1b\r\n]+) | .""",
    re.DOTALL | re.VERBOSE,
)


@dataclass
class Screen:
    """What is on the terminal, without an upper end.

    Attributes:
        rows: Cells of each line: a character and the colour codes that it was written under.
    """

    rows: list[list[tuple[str, str]]] = field(default_factory=lambda: [[]])
    _row: int = 0
    _column: int = 0
    _style: str = ""

    def write(self, text: str) -> None:
        """Take what a program wrote."""
        for part in _PART.finditer(text):
            argument, code, back, down, plain = part.groups()
            if code:
                self._control(argument, code)
            elif back:
                self._column = 0
            elif down:
                self._move(self._row + 1)
                self._column = 0
            elif plain:
                self._print(plain)

    def _print(self, text: str) -> None:
        row = self.rows[self._row]
        row.extend([(" ", "")] * (self._column - len(row)))
        row[self._column : self._column + len(text)] = [(letter, self._style) for letter in text]
        self._column += len(text)

    def _move(self, row: int) -> None:
        self._row = max(0, row)
        self.rows.extend([] for _ in range(self._row + 1 - len(self.rows)))

    def _control(self, argument: str, code: str) -> None:
        if code == "m":
            self._style = "" if argument in {"", "0"} else f"{self._style}\x1b[{argument}m"
        elif code == "A":
            self._move(self._row - int(argument or 1))
        elif code == "K":
            row = self.rows[self._row]
            del row[0 if argument == "2" else self._column :]

    def lines(self) -> list[str]:
        """Each line with its colour codes; no empty lines at the end."""
        text = "\n".join(_joined(row) for row in self.rows)
        return text.rstrip().splitlines()


def _joined(row: list[tuple[str, str]]) -> str:
    result, style = "", ""
    for letter, wanted in row:
        if wanted != style:
            result += f"\x1b[0m{wanted}"
            style = wanted
        result += letter
    return result.rstrip() + ("\x1b[0m" if style else "")

"""Wraps Markdown: `python -m tools.docs.wrap FILE...` breaks the lines of prose that are longer than 120 characters.

Only paragraphs with such a line are touched; code and tables never. What stands in backticks is kept on one line, as
people search for it.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

from tools.docs.page import Page

WIDTH: Final = 120
_MARKER: Final = re.compile(r"^(\s*(?:>\s*)*(?:[-*+]\s+|\d+[.)]\s+)?)")
_PIECE: Final = re.compile(r"(?:`+[^`]*`+|\S)+")
_OPENS_A_BLOCK: Final = re.compile(r"^(?:[-+*>=]|#+|\d+[.)]|\|.*)$")
"""Words that would begin a list, a quotation, a heading or a table at the start of a line."""


def too_long(page: Page) -> list[int]:
    """Numbers of the lines of prose that are longer than the width."""
    free = page.free_lines
    lines = page.text.splitlines()
    return [number for number, line in enumerate(lines, 1) if len(line) > WIDTH and number not in free]


def wrapped(text: str) -> str:
    """The same Markdown with no long line of prose; a word that is longer than a line stays whole."""
    page = Page("", text)
    lines = text.splitlines()
    long = set(too_long(page))
    paragraphs = [token.map for token in page.tokens if token.type == "inline" and token.map]
    for start, end in reversed(paragraphs):
        if long & set(range(start + 1, end + 1)):
            lines[start:end] = _filled(lines[start:end])
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def _filled(lines: list[str]) -> list[str]:
    """One paragraph anew; a line that ends in two spaces ends there."""
    first = _MARKER.match(lines[0])
    assert first is not None  # it matches the empty text
    lead = first[1]
    rest = re.sub(r"[^\s>]", " ", lead)
    result: list[str] = []
    current, indent = "", lead
    for number, line in enumerate(lines):
        body = line[len(lead) :] if number == 0 else line.lstrip(" >" if ">" in rest else " ")
        words = _PIECE.findall(body)
        break_ = "  " if line.endswith("  ") else ""
        for place, word in enumerate(words, 1):
            needed = len(word) + (len(break_) if place == len(words) else 0)
            if not current:
                current = indent + word
            elif len(current) + 1 + needed <= WIDTH or _OPENS_A_BLOCK.match(word):
                current += f" {word}"
            else:
                result.append(current)
                current = rest + word
        if break_:
            result.append(current + break_)
            current, indent = "", rest
    return [*result, current] if current else result


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs.wrap", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    for path in parser.parse_args().files:
        text = path.read_text(encoding="utf-8")
        if (new := wrapped(text)) != text:
            path.write_text(new, encoding="utf-8")
            print(f"wrapped {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Lines of a source with carets under what is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.cli.terminal import clean, width

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epd_operator.cli.position import Position
    from epd_operator.cli.source import Source
    from epd_operator.cli.terminal import Style

WINDOW: Final = 140
"""Characters shown of a line, at most."""
_LEAD: Final = 40
"""Characters kept before the caret of a line that is cut."""

Note = tuple["Position", str]


def excerpt(source: Source, notes: Sequence[Note], style: Style) -> Iterator[str]:
    """The lines that positions are in, each once and in order, with a note behind every caret.

    Args:
        source: The text.
        notes: Positions, and what to say about each.
        style: Colours.
    """
    gutter = max((len(str(position.line)) for position, _ in notes), default=1)
    before = 0
    for position, note in sorted(notes, key=lambda item: (item[0].line, item[0].column)):
        if position.line != before:
            if before and position.line > before + 1:
                yield style("dim", f"{'...':>{gutter}}")
            shown, cut = _shown(source, position)
            yield f"{style('dim', f'{position.line:>{gutter}} |')} {shown}"
        before = position.line
        text = _line(source, position.line)
        marked = text[position.column - 1 : position.end - 1]
        pad = " " * width(clean(text[cut : position.column - 1]))
        carets = "^" * min(max(width(clean(marked)), 1), WINDOW)
        yield f"{style('dim', f'{chr(32):>{gutter}} |')} {pad}{style('red', carets)} {clean(note)}".rstrip()


def _line(source: Source, number: int) -> str:
    lines = source.lines
    return lines[number - 1].replace("\t", " ") if number <= len(lines) else ""


def _shown(source: Source, position: Position) -> tuple[str, int]:
    """What is shown of a line, and how many characters are cut off before it."""
    text = _line(source, position.line)
    if len(text) <= WINDOW:
        return clean(text), 0
    cut = max(0, position.column - 1 - _LEAD)
    return clean(text[cut : cut + WINDOW]), cut

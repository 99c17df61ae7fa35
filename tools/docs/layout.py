"""Whether every page can be found, and is as the others are."""

from __future__ import annotations

import datetime as dt
import posixpath
import re
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tools.docs.page import Page

DECISIONS: Final = "docs/adr/README.md"
_NUMBERED: Final = re.compile(r"^docs/adr/(\d{4})-[a-z0-9-]+\.md$")
_PICTURES: Final = "docs/images/"
_FIGURES: Final = ("what", "figure", "unit", "command", "date")
_STILTED: Final = re.compile(
    r"\b(?:anew|reckon(?:s|ed)?|[Ww]hoever|"
    r"(?:is|are) no (?:flag|rate|file|regular|name|manifests?|signature|boundary|JSON))\b"
)


def targets(page: Page) -> set[str]:
    """Paths in the repository that the page links to."""
    result = (target.partition("#")[0] for _, target in page.links if ":" not in target)
    return {posixpath.normpath(posixpath.join(page.folder.as_posix(), path)) for path in result if path}


def unlisted(index: Page, paths: Iterable[str]) -> list[str]:
    """Those of the pages that the index does not link to."""
    return sorted(set(paths) - targets(index) - {index.path})


def decisions(index: Page, pages: Iterable[Page]) -> Iterator[str]:
    """A line for each decision that the index lists under another number or title than its own."""
    rows = {row[0]: row[1] for _, table in index.tables for row in table[1:]}
    for page in pages:
        numbered = _NUMBERED.match(page.path)
        if numbered is None:
            continue
        number = str(int(numbered[1]))
        title = page.title.removeprefix(f"{number}. ")
        wanted = f"[{title}]({posixpath.basename(page.path)})"
        if title == page.title:
            yield f"{page.path}: the heading must begin with {number}."
        elif rows.get(number) != wanted:
            yield f"{index.path}: row {number} must be {wanted}"


def figures(page: Page) -> Iterator[str]:
    """A line for each row of measurements without a figure, a unit, a command or a day that was."""
    for line, table in page.tables:
        if tuple(table[0]) != _FIGURES:
            yield f"{page.path}:{line}: the columns must be {', '.join(_FIGURES)}"
            continue
        for number, row in enumerate(table[1:], line + 2):
            cells = dict(zip(_FIGURES, row, strict=True))
            if empty := [name for name, cell in cells.items() if not cell]:
                yield f"{page.path}:{number}: no {', '.join(empty)}"
            if not re.match(r"\d", cells["figure"]):
                yield f"{page.path}:{number}: {cells['figure']!r} does not begin with a number"
            if not re.fullmatch(r"`[^`]+`", cells["command"]):
                yield f"{page.path}:{number}: {cells['command']!r} must be one command in backticks"
            if not _is_past(cells["date"]):
                yield f"{page.path}:{number}: {cells['date']!r} must be a day that was, as 2026-11-30"


def _is_past(text: str) -> bool:
    try:
        return dt.date.fromisoformat(text) <= dt.datetime.now(tz=dt.UTC).date()
    except ValueError:
        return False


def pictures(table: Page, paths: Iterable[str]) -> Iterator[str]:
    """A line for each picture that no row of the page's table says how to make."""
    makers = [row[0].strip("`") for _, rows in table.tables for row in rows[1:] if _PICTURES in row[0]]
    for path in paths:
        if not any(fnmatch(path, maker) for maker in makers):
            yield f"{path}: {table.path} has no command that makes it"


def stilted(page: Page) -> Iterator[str]:
    """A line for each phrase that English has better words for."""
    for line, text in page.words:
        for item in _STILTED.finditer(text):
            yield f"{page.path}:{line}: {item[0]!r}: say it plainly"

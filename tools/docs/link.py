"""Whether the links of the pages lead somewhere."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final

from tools.docs.page import ROOT, Page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:")


def faults(page: Page, pages: Mapping[str, Page], root: Path = ROOT) -> Iterator[str]:
    """A line for each link of the page to a file, folder or anchor that is not there.

    Args:
        page: What is checked.
        pages: Every page by its path.
        root: Of the repository.
    """
    for line, target in page.links:
        path, _, anchor = target.partition("#")
        if _ELSEWHERE.match(target):
            continue
        place = posixpath.normpath(posixpath.join(page.folder.as_posix(), path)) if path else page.path
        if place.startswith("..") or not (root / place).exists():
            yield f"{page.path}:{line}: {target} does not exist"
        elif anchor and place in pages and anchor not in pages[place].anchors:
            yield f"{page.path}:{line}: {place} has no heading for #{anchor}"

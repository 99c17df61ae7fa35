"""Every link leads somewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.docs import link
from tools.docs.page import Page

if TYPE_CHECKING:
    from pathlib import Path


def test_links_and_anchors_resolve(every: dict[str, Page]) -> None:
    assert [fault for page in every.values() for fault in link.faults(page, every)] == []


def test_pages_link_at_all(every: dict[str, Page]) -> None:
    assert sum(len(page.links) for page in every.values()) > 100


def test_a_wrong_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.md").write_text("# There\n## Two / words\n## Two / words\n")
    other = Page("docs/b.md", (tmp_path / "docs" / "b.md").read_text())
    text = (
        "[a](b.md) [b](b.md#two--words-1) [c](https://example.com/x) [d](#here) ![e](b.md)\n\n# Here\n\n"
        "[f](c.md), [g](b.md#three) ![h](no.svg) [i](../../up.md) [j](#away)\n\n`[k](code.md)`\n"
    )
    page = Page("docs/a.md", text)
    (tmp_path / "docs" / "a.md").write_text(text)
    faults = list(link.faults(page, {other.path: other, page.path: page}, tmp_path))
    assert faults == [
        "docs/a.md:5: c.md does not exist",
        "docs/a.md:5: docs/b.md has no heading for #three",
        "docs/a.md:5: no.svg does not exist",
        "docs/a.md:5: ../../up.md does not exist",
        "docs/a.md:5: docs/a.md has no heading for #away",
    ]

"""Every page can be found, and is as the others are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.docs import layout, wrap
from tools.docs.page import ROOT, Page

if TYPE_CHECKING:
    from collections.abc import Iterable


def documentation(paths: Iterable[str]) -> list[str]:
    """Pages for readers: all but those that a code host needs, and the decisions, which have an index of their own."""
    return [path for path in paths if not path.startswith((".github/", "docs/adr/0")) and path != "README.md"]


def test_the_index_lists_every_page(every: dict[str, Page]) -> None:
    assert layout.unlisted(every["docs/README.md"], documentation(every)) == []
    assert "docs/README.md" in layout.targets(every["README.md"])


def test_a_page_that_is_not_listed_is_found() -> None:
    index = Page("docs/README.md", "[a](a.md) [b](../b.md#x) [c](https://example.com/c.md)\n")
    assert layout.unlisted(index, ["docs/README.md", "docs/a.md", "b.md", "docs/c.md"]) == ["docs/c.md"]


def test_decisions_are_listed_with_number_and_title(every: dict[str, Page]) -> None:
    assert list(layout.decisions(every[layout.DECISIONS], every.values())) == []
    numbers = [int(path[9:13]) for path in sorted(every) if path.startswith("docs/adr/0")]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_decision_under_a_wrong_title_is_found() -> None:
    index = Page(
        layout.DECISIONS, "| | decision |\n|---|---|\n| 1 | [One](0001-one.md) |\n| 2 | [Tow](0002-two.md) |\n"
    )
    pages = [Page(f"docs/adr/000{n}-{name}.md", text) for n, name, text in (
        (1, "one", "# 1. One\n"), (2, "two", "# 2. Two\n"), (3, "three", "# 3. Three\n"), (4, "four", "# 5. Four\n"),
    )]  # fmt: skip
    assert list(layout.decisions(index, pages)) == [
        "docs/adr/README.md: row 2 must be [Two](0002-two.md)",
        "docs/adr/README.md: row 3 must be [Three](0003-three.md)",
        "docs/adr/0004-four.md: the heading must begin with 4.",
    ]


def test_lines_of_prose_are_short(every: dict[str, Page]) -> None:
    assert [f"{page.path}:{line}" for page in every.values() for line in wrap.too_long(page)] == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x " * 60 + "\n", []),
        ("y " * 61 + "\n", [1]),
        ("one\n\n" + "y " * 61 + "\n\n- " + "z " * 61 + "\n", [3, 5]),
        ("| a |\n|---|\n| " + "y " * 61 + " |\n", []),
        ("```\n" + "y " * 61 + "\n```\n", []),
        ("# " + "y " * 61 + "\n", [1]),
    ],
)
def test_a_long_line_is_found(text: str, lines: list[int]) -> None:
    assert wrap.too_long(Page("page.md", text)) == lines


@pytest.mark.parametrize(
    "text",
    [
        "- " + "a word " * 40 + "\n",
        "1. " + "a `code with words` " * 20 + "\n   second\n",
        "> " + "quoted words " * 20 + "\n",
        "ends here  \n" + "and goes on " * 30 + "\n",
        "a - b " * 40 + "\n\nnext\n",
        "  - deep " + "and [a link](to/somewhere.md) " * 20 + "\n",
    ],
)
def test_wrapping_keeps_the_meaning(text: str) -> None:
    def meaning(markdown: str) -> list[str]:
        tokens = Page("", markdown).tokens
        return [f"{token.type} {' '.join(token.content.split())}" for token in tokens]

    new = wrap.wrapped(text)
    assert wrap.too_long(Page("", new)) == []
    assert meaning(new) == meaning(text)
    assert wrap.wrapped(new) == new
    assert all(line.count("`") % 2 == 0 for line in new.splitlines())


def test_measurements_have_unit_command_and_day(every: dict[str, Page]) -> None:
    page = every["docs/measurements.md"]
    assert list(layout.figures(page)) == []
    assert sum(len(rows) - 1 for _, rows in page.tables) > 30


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| a | 1 | s | `make demo` | 2026-11-30 |", ""),
        ("| a | 1 |  | `make demo` | 2026-11-30 |", "no unit"),
        ("| a | about 1 | s | `make demo` | 2026-11-30 |", "'about 1' does not begin with a number"),
        ("| a | 1 | s | make demo | 2026-11-30 |", "'make demo' must be one command in backticks"),
        ("| a | 1 | s | `make demo` | yesterday |", "'yesterday' must be a day that was, as 2026-11-30"),
        ("| a | 1 | s | `make demo` | 9999-01-01 |", "'9999-01-01' must be a day that was, as 2026-11-30"),
    ],
)
def test_a_figure_without_its_parts_is_found(row: str, fault: str) -> None:
    page = Page("page.md", f"| what | figure | unit | command | date |\n|---|---|---|---|---|\n{row}\n")
    assert list(layout.figures(page)) == ([f"page.md:3: {fault}"] if fault else [])
    assert list(layout.figures(Page("page.md", "| what | figure |\n|---|---|\n| a | 1 |\n")))


def test_every_picture_has_a_command(every: dict[str, Page]) -> None:
    paths = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/images").iterdir()]
    assert paths
    assert list(layout.pictures(every["CONTRIBUTING.md"], paths)) == []


def test_a_picture_without_a_command_is_found() -> None:
    page = Page("page.md", "| what | command |\n|---|---|\n| `docs/images/a-*.svg` | `make a` |\n")
    paths = ["docs/images/a-1.svg", "docs/images/b.svg"]
    assert list(layout.pictures(page, paths)) == ["docs/images/b.svg: page.md has no command that makes it"]


def test_pictures_are_used(every: dict[str, Page]) -> None:
    shown = {target for page in every.values() for target in layout.targets(page)}
    paths = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/images").iterdir()}
    assert paths - shown == set()


def test_pages_are_plain_english(written: list[Page]) -> None:
    pages = [page for page in written if not page.path.startswith("docs/adr/0")]
    assert [fault for page in pages for fault in layout.stilted(page)] == []


def test_a_stilted_phrase_is_found() -> None:
    page = Page("page.md", "It is no flag.\n\n`is no flag` is what it says. It was reckoned. Whoever asks.\n")
    assert [fault.split(": ")[1] for fault in layout.stilted(page)] == ["'is no flag'", "'reckoned'", "'Whoever'"]

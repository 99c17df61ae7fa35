"""Counts and versions are those of the code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tools.docs import statement
from tools.docs.page import Page

if TYPE_CHECKING:
    from tools.docs.statement import Fact


@pytest.fixture(scope="module")
def facts() -> list[Fact]:
    return statement.facts()


def test_counts_and_versions_are_right(every: dict[str, Page], facts: list[Fact]) -> None:
    assert [fault for page in every.values() for fault in statement.faults(page, facts)] == []


def test_every_fact_is_stated_somewhere(every: dict[str, Page], facts: list[Fact]) -> None:
    messages = [page.text for page in every.values()]
    assert [one.pattern.pattern for one in facts if not any(one.pattern.search(text) for text in messages)] == []


@pytest.mark.parametrize(
    "text",
    [
        "300 rules", "the 3,770\nrules", "Kubernetes 1.36.2", "Kubernetes 1.30 or newer", "Go 1.25", "Python 3.10",
        "SGLang 0.5.22", "epd-0.2.0-py3", "first 6,999 rows", "compiled for five GPUs", "API `v1`",
        "compiled for sm_90, sm_100 and gfx942 on every", "| operator | 8081 |",
    ],
)  # fmt: skip
def test_a_wrong_count_is_found(text: str, facts: list[Fact]) -> None:
    (fault,) = statement.faults(Page("page.md", f"A line.\n{text} and more.\n"), facts)
    assert re.match(r"page\.md:2: ", fault)
    assert list(statement.faults(Page("docs/adr/0001-then.md", text), facts)) == []


def test_nothing_speaks_of_a_release(every: dict[str, Page]) -> None:
    changelog = every["CHANGELOG.md"].text
    assert [fault for page in every.values() for fault in statement.released(page, changelog)] == []


@pytest.mark.parametrize("text", ["This is release 0.1.", "    rev: v0.1.0\n", "release 0.1, API"])
def test_a_release_that_is_none_is_found(text: str) -> None:
    page = Page("page.md", text)
    assert list(statement.released(page, "# Changelog\n\n## 0.1.0 (unreleased)\n"))
    assert not list(statement.released(page, "# Changelog\n\n## 0.1.0 (2026-12-24)\n\n## 0.0.1 (unreleased)\n"))

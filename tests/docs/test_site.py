"""The site builds without a warning, has every page, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tools.docs import drawing, site
from tools.docs.page import ROOT, Page

if TYPE_CHECKING:
    from pathlib import Path

CHART = (
    "flowchart LR\n  a[One] -->|says & does| b\n  b <--> c[(Three)] & d\n  a -.-> d\n"
    "  %% place a 0 0\n  %% place b 1 0\n  %% place c 2 0\n  %% place d 2 1\n"
)


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "ERROR" not in done.stderr
    return folder


def test_every_page_is_in_the_site_and_its_navigation(built: Path, every: dict[str, Page]) -> None:
    wanted = {path for path in every if not path.startswith(site.LEFT_OUT)}
    made = {path.relative_to(built).as_posix() for path in built.rglob("*.html")}
    places = {re.sub(r"README\.html$", "index.html", path.removesuffix(".md") + ".html") for path in wanted}
    assert places - made == set()
    assert set(navigation()) == wanted


def settings() -> dict[str, Any]:
    """What mkdocs.yml says, without its tags of Python."""
    text = re.sub(r"!!python\S+.*", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    actual: dict[str, Any] = yaml.safe_load(text)
    return actual


def navigation() -> list[str]:
    return leaves(settings()["nav"])


def test_a_warning_ends_the_build() -> None:
    assert settings()["strict"] is True
    assert {check for group in ("nav", "links") for check in settings()["validation"][group].values()} == {"warn"}


def leaves(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [leaf for one in inner for leaf in leaves(one)]


def test_nothing_is_loaded_from_elsewhere(built: Path) -> None:
    loaded = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?(https?:[^"'\s>]+)""")
    actual = {url for path in built.rglob("*.html") for url in loaded.findall(path.read_text(encoding="utf-8"))}
    assert actual == set()


def test_drawings_are_drawn(built: Path) -> None:
    text = (built / "index.html").read_text(encoding="utf-8")
    assert '<div class="drawing"><svg' in text
    assert "flowchart" not in text


def test_pages_can_be_searched(built: Path) -> None:
    assert "model-pipeline-parallel" in (built / "search" / "search_index.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "target", "host", "message"),
    [
        ("a", "b.md#c", "", "[a](b.md#c)"),
        ("a", "../README.md", "", "[a](../README.md)"),
        ("a", "adr", "", "[a](adr/README.md)"),
        ("a", "https://example.com", "", "[a](https://example.com)"),
        ("a", "#here", "", "[a](#here)"),
        ("`a.py`", "../tools/a.py", "", "`a.py`"),
        ("a", "../tools/a.py#L1", "https://host/epd/", "[a](https://host/epd/blob/HEAD/tools/a.py#L1)"),
    ],
)
def test_links_lead_to_pages_or_the_code_host(words: str, target: str, host: str, message: str) -> None:
    known = {"README.md", "docs/b.md", "docs/adr/README.md"}
    assert site.link(words, target, "docs", known, host) == message


def test_a_flowchart_is_read() -> None:
    chart = drawing.read(CHART)
    assert chart.titles == {"a": "One", "b": "b", "c": "Three", "d": "d"}
    assert [(edge.left, edge.right, edge.label, edge.dashed, edge.both) for edge in chart.edges] == [
        ("a", "b", "says & does", False, False),
        ("b", "c", "", False, True),
        ("b", "d", "", False, True),
        ("a", "d", "", True, False),
    ]
    svg = drawing.drawn(CHART)
    assert svg.count("<rect") == 4
    assert svg.count("<line") == 4
    assert svg.count("stroke-dasharray") == 1
    assert "says &amp; does</text>" in svg


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CHART.replace("  %% place d 2 1\n", ""), "no place for d: add a line such as `%% place d 0 1`"),
        (CHART + "  subgraph x\n", "not understood: 'subgraph x'"),
        (CHART + "  a{x} --> b\n", "not understood: 'a{x}'"),
    ],
)
def test_a_flowchart_that_cannot_be_drawn_is_refused(text: str, message: str) -> None:
    with pytest.raises(drawing.DrawingError, match=re.escape(message)):
        drawing.drawn(text)

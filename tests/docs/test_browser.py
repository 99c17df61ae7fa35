"""What looks at the site in a browser; the browser itself is not needed here."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from tools.docs import browser

if TYPE_CHECKING:
    from pathlib import Path

# Loads what it is told to, finds the pages in it as a browser would, and says that every one is 500 pixels wide.
FAKE = """
import json, re, sys, time, urllib.request
address = sys.argv[-1]
text = urllib.request.urlopen(address).read().decode()
pages, widths = (json.loads(re.search(name + r" = (\\[.*?\\])", text)[1]) for name in ("pages", "widths"))
for page in pages:
    assert b"page" in urllib.request.urlopen(address.replace("measure", page)).read()
found = [[page, width, 500] for width in widths for page in pages]
urllib.request.urlopen(address.replace("measure", "found"), json.dumps(found).encode())
time.sleep(60)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name in ("index.html", "docs/a.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a page")
    return tmp_path


def test_every_page_is_measured_at_every_width(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPD_BROWSER", shlex.join([sys.executable, "-c", FAKE]))
    text = browser._MEASURE
    assert "pages = PAGES, widths = WIDTHS" in text
    monkeypatch.setattr(browser, "_MEASURE", text.replace(", widths", "; const widths"))
    assert browser.measured(site) == [
        ("docs/a.html", 1280, 500),
        ("index.html", 1280, 500),
        ("docs/a.html", 390, 500),
        ("index.html", 390, 500),
    ]


def test_a_page_that_is_too_wide_is_a_fault(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(browser, "SITE", site)
    monkeypatch.setattr(sys, "argv", ["browser"])
    monkeypatch.setattr(browser, "measured", lambda: [("a.html", 1280, 1280), ("a.html", 390, 500)])
    assert browser.main() == 1
    assert capsys.readouterr().out == "a.html: 500 pixels wide in a window of 390\n2 views of 1 pages, 1 too wide\n"
    monkeypatch.setattr(browser, "measured", lambda: [("a.html", 1280, 1280), ("a.html", 390, 390)])
    assert browser.main() == 0


def test_a_missing_browser_says_what_to_do(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EPD_BROWSER", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(browser, "SITE", site)
    monkeypatch.setattr(sys, "argv", ["browser"])
    assert browser.main() == 2
    assert "install one of chromium" in capsys.readouterr().err

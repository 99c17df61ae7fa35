"""What pages say that commands print is what they print; pictures of the terminal show it, too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tools.docs import console, pictures, record
from tools.docs.page import ROOT, Page
from tools.docs.terminal import Screen

if TYPE_CHECKING:
    from pathlib import Path

AGAIN = "run `make generate`"


def test_printed_output_is_right(every: dict[str, Page]) -> None:
    stale = [(f"{step.page}:{step.line}", real) for page in every.values() for step, real in console.stale(page)]
    assert stale == [], AGAIN


def test_some_output_is_compared(every: dict[str, Page]) -> None:
    shown = {step.page for page in every.values() for step in console.steps(page) if step.output and step.offline}
    assert shown >= {"README.md", "docs/install.md", "docs/swa-pool.md", "docs/validate.md"}


def test_wrong_output_is_found_and_written() -> None:
    page = Page("page.md", "A\n\n```console\n$ epd version\nepd 9.9.9\n\n$ epd status\nanything\n```\n\nB\n")
    ((step, real),) = console.stale(page)
    assert (step.line, step.command, step.output) == (4, "epd version", ("epd 9.9.9",))
    new = console.renewed(page)
    assert new == page.text.replace("epd 9.9.9", real[0])
    assert console.stale(Page("page.md", new)) == []


@pytest.mark.parametrize(
    ("message", "real", "agree"),
    [
        ("a b", "a b", True), ("a b", "a c", False), ("a", "a b", False), ("a b", "a", False), ("... b", "a a b", True),
        ("a ...", "a", True), ("a ... c", "a b b c", True), ("a ... c", "a b", False), ("... b ...", "b", True),
    ],
)  # fmt: skip
def test_dots_stand_for_any_lines(message: str, real: str, agree: bool) -> None:
    assert console.agrees(tuple(message.split()), real.split()) is agree


def test_commands_are_read_as_a_shell_reads_them() -> None:
    block = "# make demo    for everybody\n$ epd validate \\\n    docs  # all\nout\n$ epd validate - | head\n"
    text = f"```console\n{block}```\n"
    first, second, third = console.steps(Page("page.md", text))
    assert (first.bare, first.output, first.offline) == ("make demo", (), False)
    assert (second.words, second.output, second.line, second.after) == (["epd", "validate", "docs"], ("out",), 3, 5)
    assert second.offline
    assert not third.offline


@pytest.mark.parametrize("path", pictures.PICTURES)
def test_pictures_are_of_what_the_command_prints_today(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == pictures.drawn(pictures.PICTURES[path]), AGAIN


def test_pictures_load_nothing(every: dict[str, Page]) -> None:
    for path in (ROOT / "docs/images").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "@font-face" not in text
        assert "url(http" not in text.replace("'", "").replace('"', "")
    assert every


def test_a_terminal_shows_what_a_person_would_see() -> None:
    screen = Screen()
    screen.write("one\r\ntwo\r\n\x1b[2A\x1b[2Kuno\r\n\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b[?25l\r\nthree\rTH\r\n\r\n")
    assert screen.lines() == ["uno", "\x1b[0m\x1b[31mred\x1b[0m", "THree"]


def test_a_recorded_command_sees_a_terminal(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.stdout.isatty(), os.get_terminal_size().columns, os.getcwd()); sys.exit(3)"
    lines, status = record.shown([sys.executable, "-c", code], 77, quiet=True)
    assert (lines, status) == (["True 77 ~/epd"], 3)
    target = tmp_path / "new" / "a.svg"
    assert record.main([str(target), "--last", "1", "--", "printf", r"one\ntwo\n"]) == 0
    text = target.read_text(encoding="utf-8")
    assert "two" in text
    assert ">one<" not in text

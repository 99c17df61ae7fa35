"""What is shown while something takes long: one line that moves on a terminal, one a minute elsewhere."""

from __future__ import annotations

import io
import re
import time
from types import SimpleNamespace

import pytest
from typing_extensions import override

from tools import progress


class Terminal(io.StringIO):
    """Standard error of a person who watches."""

    @override
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    # Not `sys.stderr` itself: pytest puts its own there when a test begins.
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "ON_A_TERMINAL_SECONDS", 0.01)
    return stream


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    return stream


def drawn(text: str) -> list[str]:
    """What a terminal shows, line by line, each drawing of a line apart and without colours."""
    plain = re.sub(r"\x1b\[\d*m", "", text)
    return [part for line in plain.split("\n") for part in re.split(r"\r\x1b\[K", line) if part]


def wait(stream: io.StringIO, text: str) -> None:
    end = time.monotonic() + 10
    while text not in stream.getvalue():
        assert time.monotonic() < end, stream.getvalue()
        time.sleep(0.005)


def test_a_terminal_shows_one_line_that_moves(terminal: Terminal) -> None:
    with progress.step("building kubernetes") as step:
        step.far("1 of 3 packages")
        wait(terminal, "1 of 3")
        step.far("2 of 3 packages")
        wait(terminal, "2 of 3")
        assert "\n" not in terminal.getvalue()
    lines = drawn(terminal.getvalue())
    assert re.fullmatch(r"\[ *[\d.]+ s\] building kubernetes, since \d\d:\d\d:\d\d \(0 s\)", lines[0])
    assert any("building kubernetes: 2 of 3 packages, since " in line for line in lines)
    assert lines[-1].endswith("building kubernetes: done in 0 s")
    assert terminal.getvalue().count("\n") == 1


def test_a_line_that_is_said_meanwhile_stays_above_the_one_that_moves(terminal: Terminal) -> None:
    with progress.step("building"):
        progress.say("hello")
        assert re.search(r"\r\x1b\[K\x1b\[2m\[ *[\d.]+ s\]\x1b\[0m hello\n\r\x1b\[K", terminal.getvalue())
        assert "building, since" in drawn(terminal.getvalue())[-1]


def test_a_long_line_is_cut_to_the_width_and_keeps_how_far_it_is(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_columns", lambda: 60)
    with progress.step("building " + "x" * 200) as step:
        step.far("7 of 9")
        wait(terminal, "7 of 9")
        lines = drawn(terminal.getvalue())
    assert all(len(line) < 60 for line in lines)
    assert re.search(r"building x*…: 7 of 9, since [\d:]+ \(\d s\)$", lines[-1])


def test_elsewhere_a_line_a_minute(log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress.ELSEWHERE_SECONDS == 60.0
    monkeypatch.setattr(progress, "ELSEWHERE_SECONDS", 0.05)
    with progress.step("building kubernetes") as step:
        step.far("1 of 3 packages")
        wait(log, "1 of 3")
    text = log.getvalue()
    assert "\r" not in text
    assert "\x1b" not in text
    first, *reminders, last = text.splitlines()
    assert first.endswith("] building kubernetes")
    assert all(re.search(r"building kubernetes: 1 of 3 packages, since [\d:]{8} \(0 s\)$", each) for each in reminders)
    assert last.endswith("building kubernetes: done in 0 s")


def test_a_step_that_fails_is_not_called_done(log: io.StringIO) -> None:
    with pytest.raises(KeyError), progress.step("building"):
        raise KeyError
    assert log.getvalue().splitlines()[-1].endswith("building: failed after 0 s")


def test_a_dumb_terminal_gets_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with progress.step("building"):
        pass
    assert "\r" not in terminal.getvalue()


def test_colours_are_for_terminals_that_want_them(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress.coloured("x", "red") == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert progress.coloured("x", "red") == "x"
    monkeypatch.delenv("NO_COLOR")
    assert progress.coloured("x", "red", stream=io.StringIO()) == "x"


def test_the_inner_of_two_steps_is_shown(terminal: Terminal) -> None:
    with progress.step("outer"):
        with progress.step("inner"):
            time.sleep(0.05)
            assert "inner, since" in drawn(terminal.getvalue())[-1]
        wait(terminal, "inner: done")
        time.sleep(0.05)
        assert "outer, since" in drawn(terminal.getvalue())[-1]


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (250, "4 min 10 s")])
def test_durations_are_said_in_words(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text

"""Pid files against real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

from tests.support.polling import until
from tools.cluster import process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and uses pidfds")

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
)


@pytest.fixture
def pid_file(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "pids" / "thing.json"
    yield file
    process.stop(file, grace_seconds=0)


def launch(pid_file: Path, *argv: str) -> process.Record:
    log = pid_file.parent.parent / "thing.log"
    return process.start(pid_file, argv, log=log, fingerprint="abc", env={"PATH": os.environ["PATH"]})


def test_a_started_process_is_found_again_by_its_file(pid_file: Path) -> None:
    record = launch(pid_file, "/bin/sleep", "60")
    assert process.read(pid_file) == record
    assert process.alive(process.read(pid_file))
    assert record.fingerprint == "abc"


def test_it_leads_a_session_of_its_own(pid_file: Path) -> None:
    record = launch(pid_file, "/bin/sleep", "60")
    assert os.getsid(record.pid) == record.pid


def test_stop_ends_it_and_removes_the_file(pid_file: Path) -> None:
    record = launch(pid_file, "/bin/sleep", "60")
    assert process.stop(pid_file, grace_seconds=5)
    assert not pid_file.exists()
    assert not process.alive(record)


def test_another_start_time_is_another_process_and_is_left_alone(pid_file: Path) -> None:
    record = launch(pid_file, "/bin/sleep", "60")
    stale = replace(record, start_ticks=record.start_ticks - 1)
    other = pid_file.with_name("other.json")
    other.write_text(json.dumps(asdict(stale)))
    assert not process.alive(process.read(other))
    assert not process.stop(other, grace_seconds=0)
    assert not other.exists()
    assert process.alive(record)


def test_a_record_of_an_earlier_boot_names_nothing(pid_file: Path) -> None:
    record = launch(pid_file, "/bin/sleep", "60")
    other = pid_file.with_name("other.json")
    other.write_text(json.dumps(asdict(replace(record, boot="00000000-0000-0000-0000-000000000000"))))
    assert not process.stop(other, grace_seconds=0)
    assert process.alive(record)


def test_a_process_that_ended_but_was_not_reaped_is_dead(pid_file: Path) -> None:
    record = launch(pid_file, "/bin/sleep", "60")
    os.kill(record.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while process.start_ticks(record.pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not process.alive(record)
    os.waitpid(record.pid, 0)


def test_one_that_ignores_sigterm_is_killed_after_the_grace(pid_file: Path) -> None:
    record = launch(pid_file, sys.executable, "-c", STUBBORN)
    log = pid_file.parent.parent / "thing.log"
    until(lambda: "deaf" in log.read_text())
    began = time.monotonic()
    assert process.stop(pid_file, grace_seconds=0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert not process.alive(record)


@pytest.mark.parametrize("text", ["", "12345", "{}", '{"pid": 1}', "not json"])
def test_a_damaged_file_names_nothing(pid_file: Path, text: str) -> None:
    pid_file.parent.mkdir(parents=True)
    pid_file.write_text(text)
    assert process.read(pid_file) is None
    assert not process.stop(pid_file, grace_seconds=0)


def test_a_missing_program_is_an_error_and_leaves_no_file(pid_file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        launch(pid_file, "/nonexistent/sleep")
    assert not pid_file.exists()


def test_output_goes_to_the_log_and_a_long_log_is_set_aside(pid_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOG_KEEP_BYTES", 3)
    log = pid_file.parent.parent / "thing.log"
    log.write_text("long ago\n")
    launch(pid_file, "/bin/sh", "-c", "echo out; echo err >&2; sleep 60")
    until(lambda: "err" in log.read_text())
    assert log.read_text() == "out\nerr\n"
    assert log.with_name("thing.log.1").read_text() == "long ago\n"


def test_the_start_time_is_read_behind_a_command_name_with_brackets(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as child:
        try:
            ticks = process.start_ticks(child.pid)
            now = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
            assert ticks is not None
            assert now - 20 * os.sysconf("SC_CLK_TCK") < ticks <= now + 1
        finally:
            child.kill()

"""Nothing runs that the table does not name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import packages, program
from tools.cluster import process
from tools.program import Unfit, UnknownProgram

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS: dict[str, Callable[[list[str]], object]] = {
    "run": program.run,
    "show": program.show,
    "start": program.start,
    "watch": lambda argv: program.watch(argv, print),
    "path": lambda argv: program.path(argv[0]),
    "component": lambda argv: process.start(Path("x"), argv, log=Path("x"), fingerprint="", env={}),
}


@pytest.mark.parametrize("name", ["nmap", "/usr/bin/nmap", "/tmp/nmap"])
@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_the_table_does_not_name_is_refused(way: str, name: str) -> None:
    with pytest.raises(UnknownProgram, match=r"'nmap' is not in the table of tools/packages.py: add it there"):
        WAYS[way]([name, "-p"])


def test_this_interpreter_is_known_by_whatever_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/pypy")
    program.check("/opt/pypy")
    with pytest.raises(UnknownProgram):
        program.check("/usr/bin/pypy")


def test_a_program_is_found_where_a_users_path_does_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert program.path("sh") in {"/usr/bin/sh", "/bin/sh"}


def test_a_program_that_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "which", lambda _: None)
    with pytest.raises(Unfit, match=r"'ctr' is not installed: .*tools.setup.* installs the package containerd"):
        program.run(["ctr", "images"])
    with pytest.raises(Unfit, match=r"'go' is not installed: .*1\.26"):
        program.path("go")


def test_run_keeps_output_and_status() -> None:
    done = program.run([sys.executable, "-c", "import sys; print(input()); sys.exit(3)"], text="hello")
    assert (done.returncode, done.stdout) == (3, "hello\n")
    with pytest.raises(subprocess.CalledProcessError):
        program.run(["false"], check=True)


def test_standard_input_is_empty_unless_given() -> None:
    assert program.run(["cat"]).stdout == ""


def test_a_watched_program_hands_out_its_lines_as_they_come(tmp_path: Path) -> None:
    seen: list[str] = []
    numbers = f"[print(i) for i in range({program.KEPT_LINES})]"
    code = f"import sys; print('a'); print('b', file=sys.stderr); {numbers}; sys.exit(2)"
    with (tmp_path / "log").open("w") as log:
        done = program.watch([sys.executable, "-u", "-c", code], seen.append, log=log)
    assert done.status == 2
    assert seen[:3] == ["a", "b", "0"]
    assert done.tail == tuple(map(str, range(program.KEPT_LINES)))
    assert (tmp_path / "log").read_text().splitlines() == seen


def test_a_started_program_is_spoken_to_by_pipes() -> None:
    with program.start([sys.executable, "-c", "print(input())"]) as process:
        assert process.communicate("hello\n")[0] == "hello\n"

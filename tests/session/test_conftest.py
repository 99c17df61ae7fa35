"""What the root conftest.py and pyproject.toml promise of every run, in one process and in several."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PASSES = "def test_passes():\n    pass\n"
SKIPPED_TEST = f"import pytest\n\n{PASSES}\n\ndef test_skips():\n    pytest.skip('not here')\n"
SKIPPED_FILE = "import pytest\n\npytest.skip('not here', allow_module_level=True)\n"
SLEEPS = "import time\n\n\ndef test_sleeps():\n    time.sleep(60)\n"
WARNS = "import warnings\n\n\ndef test_warns():\n    warnings.warn('old')\n"
LEAKS = "def test_leaks(tmp_path):\n    (tmp_path / 'file').open('w')\n"
# Writes down which process ran each test.
TELLS = """
import os
import pathlib

import pytest


@pytest.mark.parametrize("number", range(4))
def test_tells(number):
    with pathlib.Path("processes").open("a") as out:
        out.write(f"{pathlib.Path(__file__).name} {os.getpid()}\\n")
"""
DRAWS = """
import pathlib

from hypothesis import given, strategies


@given(strategies.integers(0, 2**64))
def test_draws(number):
    with pathlib.Path("drawn").open("a") as out:
        out.write(f"{number}\\n")
"""
SKIPS = {"test_skips.py": SKIPPED_TEST, "test_file.py": SKIPPED_FILE}
FAILS = {"test_warns.py": WARNS, "test_leaks.py": LEAKS, "test_sleeps.py": SLEEPS}
PLACES = ("test_a.py", "test_b.py", "swapool/traffic/test_c.py", "swapool/traffic/test_d.py")


@dataclass(frozen=True)
class Run:
    """A run of pytest that has ended.

    Attributes:
        status: Of the process.
        text: What it printed.
        drawn: Examples of the property test, in their order.
        processes: Each file's processes.
    """

    status: int
    text: str
    drawn: tuple[str, ...]
    processes: dict[str, set[str]]

    @property
    def summary(self) -> str:
        return self.text.splitlines()[-1]


def run(folder: Path, files: dict[str, str], *words: str, ci: bool) -> Run:
    """Run pytest with this project's configuration over some files, and over a property test."""
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name, text in {"test_draws.py": DRAWS, **files}.items():
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CI"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests", *words]
    environment = inherited | ({"CI": "true"} if ci else {})
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    processes: dict[str, set[str]] = {}
    reported = folder / "processes"
    for line in reported.read_text().splitlines() if reported.exists() else ():
        name, process = line.split()
        processes.setdefault(name, set()).add(process)
    drawn = tuple((folder / "drawn").read_text().splitlines())
    return Run(ended.returncode, ended.stdout + ended.stderr, drawn, processes)


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("one"), {}, ci=True)


@pytest.fixture(scope="module")
def in_two_processes(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("two"), {**SKIPS, **dict.fromkeys(PLACES, TELLS)}, "-n", "2", ci=True)


@pytest.fixture(scope="module")
def at_night(tmp_path_factory: pytest.TempPathFactory) -> Run:
    words = ("-n", "2", "--hypothesis-profile", "fresh", "--timeout", "1")
    return run(tmp_path_factory.mktemp("night"), FAILS, *words, ci=False)


def test_ci_fails_nothing_by_itself(in_one_process: Run) -> None:
    assert in_one_process.status == 0, in_one_process.text
    assert "1 passed in" in in_one_process.summary


@pytest.mark.parametrize("ci", [False, True])
def test_a_skip_fails_in_ci_alone(tmp_path: Path, ci: bool) -> None:
    ended = run(tmp_path, SKIPS, ci=ci)
    assert (ended.status, "CI is set and 2 tests were skipped" in ended.text) == (ci, ci), ended.text
    assert "2 passed, 2 skipped in" in ended.summary


def test_a_skip_in_another_process_fails_in_ci(in_two_processes: Run) -> None:
    assert in_two_processes.status == 1
    assert "CI is set and 2 tests were skipped" in in_two_processes.text
    assert "18 passed, 2 skipped in" in in_two_processes.summary


def test_a_file_stays_in_one_process_and_so_do_some_folders(in_two_processes: Run) -> None:
    processes = in_two_processes.processes
    assert {name: len(ran) for name, ran in processes.items()} == {Path(name).name: 1 for name in PLACES}
    assert processes["test_c.py"] == processes["test_d.py"]
    assert len(set.union(*processes.values())) == 2


def test_warnings_and_time_limits_fail_tests_in_other_processes(at_night: Run) -> None:
    assert at_night.status == 1
    assert "3 failed, 1 passed in" in at_night.summary
    for fault in ("UserWarning: old", "PytestUnraisableExceptionWarning", "Timeout (>1.0s)"):
        assert fault in at_night.text, at_night.text


def test_examples_are_the_same_on_every_run_but_at_night(
    in_one_process: Run, in_two_processes: Run, at_night: Run
) -> None:
    assert len(in_one_process.drawn) == 100
    assert in_one_process.drawn == in_two_processes.drawn
    assert in_one_process.drawn != at_night.drawn

"""The wheel in an empty environment, as somebody installs the command line who has nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epd_operator import __version__
from tools.release import check, lock, package, source

if TYPE_CHECKING:
    from collections.abc import Callable

    Epd = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "manifests" / "samples" / "sglang-h200.yaml"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epd" / "uv"


@pytest.fixture(scope="session")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package.wheel(tree, tmp_path_factory.mktemp("wheel"), source.commit(ROOT).time)


def install(wheel: Path, what: str, lock_file: str, folder: Path) -> Path:
    """Make an environment, install the wheel into it by its file; the folder of its programs.

    Args:
        wheel: The wheel.
        what: The wheel's file as a user names it, with or without extras.
        lock_file: The lock file that says which versions.
        folder: Where to make it.
    """
    venv.create(folder, with_pip=False)
    command: list[str | Path] = [Path(sys.executable).parent / "uv", "pip", "install", "--quiet"]
    command += ["--python", folder / "bin" / "python", "--constraint", ROOT / "requirements" / lock_file, what]
    # The packages are those of our own environment: the cache of `make` has them.
    environment = {"UV_CACHE_DIR": str(CACHE), **os.environ}
    done = subprocess.run(command, cwd=wheel.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.fixture(scope="session")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and with what the wheel asks for, in the locked versions."""
    return install(wheel, wheel.name, "cli.txt", tmp_path_factory.mktemp("empty"))


@pytest.fixture
def epd(empty: Path, tmp_path: Path) -> Epd:
    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(empty), "HOME": str(tmp_path)}
        return subprocess.run(
            [empty / "epd", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_it_brings_what_the_lock_file_names_and_nothing_else(empty: Path) -> None:
    code = "import json; from importlib.metadata import distributions as d; print(json.dumps([x.name for x in d()]))"
    done = subprocess.run([empty / "python", "-c", code], capture_output=True, text=True, check=True)
    actual = {name.lower().replace("_", "-") for name in json.loads(done.stdout)}
    assert actual == {"epd"} | {one.name for one in lock.read(ROOT / "requirements" / "cli.txt")}
    assert not actual & check.HEAVY


def test_validate_judges_the_sample(epd: Epd) -> None:
    done = epd("validate", SAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("1 document: 1 accepted\n")


def test_validate_judges_a_command_line(epd: Epd) -> None:
    done = epd("validate", "--", "--tp", "4", "--pp-size", "2")
    assert (done.returncode, done.stderr) == (1, "")
    assert "model-pipeline-parallel" in done.stdout


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--help"], "epd validate deploy.yaml"),
        (["version"], f"epd {__version__}\n"),
        (["explain", SAMPLE], "--tp-size"),
        (["render", SAMPLE], "kind: Deployment"),
        (["crd"], "kind: CustomResourceDefinition"),
        (["completion", "bash"], "complete -"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, list) else "",
)
def test_a_command_without_a_cluster_works(epd: Epd, words: list[str | Path], reported: str) -> None:
    done = epd(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert reported in done.stdout


@pytest.mark.parametrize("command", ["status", "run"])
def test_a_command_that_talks_to_a_cluster_says_what_to_install(epd: Epd, wheel: Path, command: str) -> None:
    done = epd(command)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"epd: `epd {command}` needs the extra 'operator' (")
    assert line.endswith(f"pip install '{wheel.name}[operator]'")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["epd-reference", "--role", "prefill"], "workers"),
        (["epd-reference", "inspect"], "workers"),
        (["epd-reference", "train", "--out", "folder"], "workers"),
        (["epd-swapool", "valkey", "--memory", "100000000"], "workers"),
        (["epd-registrar", "--namespace", "a", "--selector", "b=c", "--control-key-file", "key"], "router"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_program_of_the_pods_says_what_to_install(
    empty: Path, wheel: Path, tmp_path: Path, words: list[str], extra: str
) -> None:
    done = subprocess.run(
        [empty / words[0], *words[1:]], cwd=tmp_path, env={}, capture_output=True, text=True, check=False, timeout=60
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert line.startswith(f"{words[0]}: needs the extra {extra!r} (")
    assert line.endswith(f"pip install '{wheel.name}[{extra}]'")


def test_what_it_says_to_install_is_what_was_missing(wheel: Path, tmp_path: Path) -> None:
    programs = install(wheel, f"{wheel.name}[operator]", "operator.txt", tmp_path / "venv")
    environment = {"PATH": str(programs), "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")}
    for command in ("status", "run"):
        done = subprocess.run(
            [programs / "epd", command], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert "is not installed" not in done.stderr
        assert "no access to a cluster" in done.stderr

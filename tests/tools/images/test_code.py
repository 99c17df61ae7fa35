from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from images import code

if TYPE_CHECKING:
    from pathlib import Path

PYPROJECT = """
[project]
name = "epd"
version = "1.2.3"
[project.scripts]
here = "package.cli.main:main"
absent = "other.main:main"
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    package = tmp_path / "code" / "package" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(
        "from importlib.metadata import version\ndef main():\n    print(version('epd'))\n    return 3\n"
    )
    return tmp_path


def test_commands_of_the_packages_that_are_there_run(image: Path) -> None:
    assert code.install(image / "pyproject.toml", image / "code", image / "venv") == ["here"]
    command = image / "venv" / "bin" / "here"
    environment = {**os.environ, "PYTHONPATH": str(image / "code")}
    done = subprocess.run([command], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "1.2.3\n"), done.stderr
    assert not (image / "venv" / "bin" / "absent").exists()


def test_byte_code_does_not_depend_on_file_times(image: Path) -> None:
    code.install(image / "pyproject.toml", image / "code", image / "venv")
    compiled = list((image / "code").rglob("*.pyc"))
    assert [path.name.partition(".")[0] for path in compiled] == ["main"]
    assert compiled[0].read_bytes()[4:8] == b"\x01\0\0\0"  # PEP 552: hash-based, source not looked at


def test_a_module_that_does_not_compile_stops_the_build(image: Path) -> None:
    (image / "code" / "package" / "broken.py").write_text("def\n")
    with pytest.raises(SystemExit, match="a module does not compile"):
        code.install(image / "pyproject.toml", image / "code", image / "venv")


def test_a_command_that_cannot_start_stops_the_build(image: Path) -> None:
    (image / "code" / "package" / "cli" / "main.py").write_text("import absent_dependency\n")
    with pytest.raises(SystemExit, match=r"here: package\.cli\.main cannot be imported in this image"):
        code.install(image / "pyproject.toml", image / "code", image / "venv")

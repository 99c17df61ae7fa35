"""Makes the wheel, the source distribution and the chart's package: the same bytes from the same files."""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tools import program
from tools.release.error import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Sequence


def wheel(source: Path, target: Path, time: int) -> Path:
    """Build the wheel of the project at `source` into the folder `target`; its path.

    Args:
        source: The project's folder.
        target: Where to; made when it is not there.
        time: Seconds since 1970: how old the files in it are.

    Raises:
        ReleaseError: The build failed.
    """
    return _hatchling(source, target, time, "wheel", "*.whl")


def sdist(source: Path, target: Path, time: int) -> Path:
    """Build the source distribution, as `wheel` does."""
    return _hatchling(source, target, time, "sdist", "*.tar.gz")


def wheel_from_sdist(archive: Path, target: Path, time: int) -> Path:
    """Build the wheel from nothing but a source distribution, as `wheel` does."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
        (source,) = Path(folder).iterdir()
        return wheel(source, target, time)


def chart(source: Path, target: Path, time: int, helm: Path) -> Path:
    """Package the chart of a copy of the sources, whose files' times this sets: Helm takes those into the package.

    Raises:
        ReleaseError: Helm refused.
    """
    folder = source / "charts" / "epd-operator"
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (time, time))
    target.mkdir(parents=True, exist_ok=True)
    _run([str(helm), "package", str(folder), "--destination", str(target)], source, {})
    return _only(target, "*.tgz")


def _hatchling(source: Path, target: Path, time: int, form: str, pattern: str) -> Path:
    # In the environment of `make`, whose lock file has the build backend: a build fetches nothing.
    command = [sys.executable, "-m", "hatchling", "build", "--target", form, "--directory", str(target)]
    _run(command, source, {"SOURCE_DATE_EPOCH": str(time)})
    return _only(target, pattern)


def _run(command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
    done = program.run(command, cwd=folder, env={**os.environ, **environment})
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def _only(folder: Path, pattern: str) -> Path:
    (result,) = folder.glob(pattern)
    return result

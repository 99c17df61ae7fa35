"""Other versions of Triton beside the installed one, in folders of their own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
VERSIONS: Final = ("3.8.0", "3.9.0")
"""Beside the one that torch pins; newest last."""


def folder(version: str) -> Path:
    """Where a version's package lies, to be put before all others; downloaded once, into the user's cache."""
    requirements = ROOT / "requirements" / f"triton-{version}.txt"
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epd"
    place = cache / f"triton-{version}-{key}"
    if not place.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as half:
            _install(requirements, Path(half) / "whole")
            # Renamed when whole, so that nobody finds half a package.
            shutil.move(Path(half) / "whole", place)
    return place


def _install(requirements: Path, target: Path) -> None:
    uv = str(Path(sys.executable).parent / "uv")
    options = ["--no-deps", "--require-hashes", "--python", sys.executable, "--target", str(target)]
    command = [uv, "pip", "install", "--quiet", *options, "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run(*module: str, version: str | None, interpret: bool) -> subprocess.CompletedProcess[str]:
    """Run a module of ours with a version of Triton; None means the installed one."""
    path = [str(ROOT), *([] if version is None else [str(folder(version))])]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join(path)} | ({"TRITON_INTERPRET": "1"} if interpret else {})
    command = [sys.executable, "-m", *module]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

"""The environment that the real engine lives in: SGLang and what its argument checks import, in a folder of their own.

`python -m tools.differential.environment` makes it by hand and prints its interpreter. About 5 GB are shown, nearly all
of them hard links to torch's files in uv's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import sys
from pathlib import Path

from tools import program
from tools.progress import step

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "engine.txt"


def cache() -> Path:
    """The folder of every download and build of ours, which `make distclean` takes away."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epd"


CACHES = {"SGLANG_CACHE_DIR": str(cache() / "sglang")}
"""What keeps the engine's own caches inside ours."""


def folder() -> Path:
    """Where the environment belongs: another lock file or another Python makes another one."""
    key = hashlib.sha256(LOCK.read_bytes() + platform.python_version().encode()).hexdigest()[:16]
    return cache() / f"engine-{key}"


def interpreter() -> Path:
    """Make the environment unless it is there.

    Returns:
        Its Python.

    Raises:
        RuntimeError: When uv could not make it; the message holds what uv said.
    """
    target = folder()
    python = target / "bin" / "python"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not python.exists():
            with step("installing the real engine (SGLang)"):
                _install(target)
    return python


def _install(target: Path) -> None:
    """Build beside `target` and rename, so that an interrupted build is never taken for a whole one."""
    building = target.with_name(f"{target.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    uv = str(Path(sys.executable).with_name("uv"))
    _run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(building)])
    install = [uv, "pip", "install", "--quiet", "--python", str(building / "bin" / "python")]
    _run([*install, "--no-deps", "--require-hashes", "-r", str(LOCK)])
    building.rename(target)


def _run(command: list[str]) -> None:
    env = {"UV_CACHE_DIR": str(cache() / "uv"), **os.environ}
    done = program.run(command, env=env)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    sys.stdout.write(f"{interpreter()}\n")

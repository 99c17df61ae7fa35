"""The engine's plugin as a folder for ``PYTHONPATH``: `python -m tools.plugin FOLDER`.

It holds what `pip install --target FOLDER --no-deps` would put there of the plugin's wheel, and of ours what the plugin
imports. The engine finds a plugin by the entry points of its wheel, so the code alone would not do.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hatchling.builders.wheel import WheelBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "workers" / "epd_sglang"
LIBRARIES: Final = ("kernels/epd_kernels", "workers/epd_workers/swapool")
"""What the plugin imports of ours, as folders of packages."""
FILES: Final = tuple(
    f"workers/epd_workers/{name}" for name in ("__init__.py", "extra.py", "py.typed", "worker_threads.py")
)


def make(folder: Path) -> None:
    """Make the folder anew.

    Args:
        folder: Where; what lies there of an earlier one is replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as built:
        (wheel,) = WheelBuilder(str(SOURCE)).build(directory=built, versions=["standard"])
        for old in folder.glob("epd_sglang*"):
            shutil.rmtree(old)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    for name in LIBRARIES:
        target = folder.joinpath(*Path(name).parts[1:])
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy2(ROOT / name, folder.joinpath(*Path(name).parts[1:]))


def main(argv: Sequence[str] | None = None) -> int:
    """Make the folder and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.plugin", description=make.__doc__)
    parser.add_argument("folder", type=Path, help="where; what lies there of an earlier one is replaced")
    make(parser.parse_args(argv).folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A release of this checkout, as the tests of its recipe look at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tools.release.recipe import Release


@dataclass(frozen=True)
class Made:
    """A release, and what it was made of.

    Attributes:
        release: The release.
        tree: A copy of the tracked files.
        helm: The program that packaged the chart.
        done: The recipe's end: its status and output.
    """

    release: Release
    tree: Path
    helm: Path
    done: subprocess.CompletedProcess[str]

"""How the benches' plots are made: where to, how large, and so that the same figures give the same bytes."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator


def file(word: str) -> Path:
    """A command line argument that names an SVG or a PNG.

    Raises:
        argparse.ArgumentTypeError: It names something else.
    """
    path = Path(word)
    if path.suffix not in {".svg", ".png"}:
        raise argparse.ArgumentTypeError(f"{word!r} must end in .svg or .png")
    return path


@contextlib.contextmanager
def drawing(path: Path, salt: str) -> Iterator[Figure]:
    """A figure to be filled, which is then written with the legend of its first panel above.

    Args:
        path: SVG or PNG by its name.
        salt: Of the ids in an SVG, which are random otherwise.
    """
    # No date either; text stays text.
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        yield figure
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=160)

"""The plot of the ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.plot import drawing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.replay.point import Point
    from bench.spread import Spread

_SERIES: tuple[tuple[str, str, str, Callable[[Point], Spread]], ...] = (
    ("as timed", "#b8a99a", "o", lambda point: point.whole),
    ("what both runs share subtracted", "#c8553d", "s", lambda point: point.layers),
    ("index selection subtracted, too", "#2f6f73", "^", lambda point: point.linear),
)


def draw(points: Sequence[Point], path: Path) -> None:
    """Write the plot, SVG or PNG by its name: a panel for each number of requests, medians and ranges over E."""
    shapes = sorted({len(point.sizes) for point in points})
    with drawing(path, "replay") as figure:
        panels: list[Axes] = list(figure.subplots(1, len(shapes), sharey=True, squeeze=False)[0])
        for panel, requests in zip(panels, shapes, strict=True):
            _panel(panel, [point for point in points if len(point.sizes) == requests], requests)
        panels[0].set_ylabel("prefill cost, replay off / on (CPU time)")


def _panel(panel: Axes, points: Sequence[Point], requests: int) -> None:
    rows = [point.rows for point in points]
    theory = [point.theory for point in points]
    panel.plot(rows, theory, color="black", linewidth=1, linestyle="--", label="rows x layers, counted", zorder=1)
    for label, color, marker, read in _SERIES:
        spreads = [read(point) for point in points]
        medians = [spread.median for spread in spreads]
        below = [spread.median - spread.low for spread in spreads]
        above = [spread.high - spread.median for spread in spreads]
        panel.errorbar(rows, medians, yerr=(below, above), color=color, marker=marker, markersize=5, capsize=3,
                       linewidth=1.4, label=label)  # fmt: skip
    panel.set_xscale("log", base=2)
    panel.set_xticks(rows, [str(count) for count in rows], minor=False)
    panel.set_xlabel("E, prompt tokens of the batch")
    panel.set_title("one request" if requests == 1 else f"{requests} requests of different lengths")
    panel.grid(visible=True, axis="y", color="#e6e0da", linewidth=0.8)
    panel.spines[["top", "right"]].set_visible(False)

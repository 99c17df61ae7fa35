"""The plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from bench.plot import drawing
from bench.swapool.trace import PAGE, WINDOW
from bench.swapool.turn import STATES
from epd_operator.cli import pool_sizing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.swapool.latency import Operation
    from bench.swapool.latency import Point as Latency
    from bench.swapool.replay import Cell
    from bench.swapool.results import Results
    from bench.swapool.turn import Point as Turn

_COLOURS: Final = ("#2f6f73", "#c8553d", "#b8a99a", "#5b5f97", "#8fae5d")
_GRID: Final = "#e6e0da"


def draw(results: Results, folder: Path) -> Iterator[Path]:
    """Write a plot for each part that there is; their files."""
    if results.latency:
        yield _latency(results.latency, folder / "swapool-latency.svg")
    if results.turns:
        yield _turns(results.turns, folder / "swapool-turns.svg")
    if results.hits:
        yield _hits(results.hits, folder / "swapool-hits.svg")


def _latency(points: Sequence[Latency], path: Path) -> Path:
    """Medians and ranges over an object's size, one client, to the pool and from it."""
    with drawing(path, "swapool-latency") as figure:
        panels: list[Axes] = list(figure.subplots(1, 2, sharey=True))
        operations: tuple[Operation, ...] = ("get", "put")
        for panel, operation in zip(panels, operations, strict=True):
            shown = [p for p in points if p.operation == operation and p.clients == 1]
            engines = list(dict.fromkeys(p.engine for p in shown if p.way == "client"))
            for engine, colour in zip(engines, _COLOURS, strict=False):
                _line(panel, [p for p in shown if p.engine == engine and p.way == "client"], colour, engine)
            for way, style in (("tcp", "--"), ("copy", ":")):
                # Measured beside each engine; the first one's stand for all.
                floors = [p for p in shown if p.way == way]
                _line(panel, [p for p in floors if p.engine == floors[0].engine], "black", way, style)
            panel.set_title(operation)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            sizes = sorted({p.size for p in shown})
            panel.set_xticks(sizes, [f"{size / 1e6:.2f}" for size in sizes], minor=False)
            panel.set_xlabel("MB of a window")
            _tidy(panel)
        panels[0].set_ylabel("milliseconds, one client")
    return path


def _line(panel: Axes, points: Sequence[Latency], colour: str, label: str, style: str = "-") -> None:
    spreads = [point.milliseconds for point in points]
    medians = [spread.median for spread in spreads]
    low = [spread.median - spread.low for spread in spreads]
    high = [spread.high - spread.median for spread in spreads]
    panel.errorbar([point.size for point in points], medians, yerr=(low, high), color=colour, linestyle=style,
                   marker="o", markersize=4, capsize=3, linewidth=1.4, label=label)  # fmt: skip


def _turns(points: Sequence[Turn], path: Path) -> Path:
    """Bars with ranges: a group for each length of a turn."""
    groups = list(dict.fromkeys(point.tokens for point in points))
    width = 0.8 / len(STATES)
    with drawing(path, "swapool-turns") as figure:
        panel = figure.subplots()
        for number, (state, colour) in enumerate(zip(STATES, _COLOURS, strict=True)):
            spreads = [next(p.milliseconds for p in points if (p.tokens, p.state) == (each, state)) for each in groups]
            places = [group + (number - (len(STATES) - 1) / 2) * width for group in range(len(groups))]
            panel.bar(places, [spread.median for spread in spreads], 0.9 * width, color=colour, label=state)
            panel.vlines(places, [s.low for s in spreads], [s.high for s in spreads], color="black", linewidth=1)
        panel.set_xticks(range(len(groups)), [f"{tokens} more tokens" for tokens in groups])
        panel.set_ylabel("milliseconds to the first token")
        panel.set_ylim(bottom=0)
        _tidy(panel)
    return path


def _hits(cells: Sequence[Cell], path: Path) -> Path:
    """Predicted shares as lines over the time to live, measured ones as points, for the trace's own rate."""
    least = min(cell.copies for cell in cells)
    mine = [cell for cell in cells if cell.copies == least]
    ttls = np.linspace(5, 1.1 * max(cell.ttl for cell in mine), 200)
    with drawing(path, "swapool-hits") as figure:
        panel = figure.subplots()
        for windows, colour in zip(sorted({cell.windows for cell in mine}), _COLOURS, strict=False):
            shown = [cell for cell in mine if cell.windows == windows]
            capacity = pool_sizing.Capacity(windows, pool_sizing.windows_per_turn(PAGE, WINDOW))
            predicted = [100 * capacity.hit_share(float(ttl), shown[0].turns_per_second) for ttl in ttls]
            panel.plot(ttls, predicted, color=colour, linewidth=1.4, label=f"{windows:,} windows")
            panel.scatter([cell.ttl for cell in shown], [100 * cell.measured for cell in shown], color=colour, s=26)
        panel.set_title(f"{mine[0].turns_per_second:.1f} turns/s; lines: predicted, points: measured")
        panel.set_xlabel("seconds that a window may be used for")
        panel.set_ylabel("% of returning turns that hit")
        panel.set_ylim(0, 100)
        _tidy(panel)
    return path


def _tidy(panel: Axes) -> None:
    panel.grid(visible=True, axis="y", color=_GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)

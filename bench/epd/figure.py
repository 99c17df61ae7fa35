"""The plot of the latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.epd.load import KINDS
from bench.plot import drawing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.epd.load import Kind
    from bench.epd.table import Latency, Result

_COLOURS: dict[Kind, str] = {"text": "#2f6f73", "image": "#c8553d"}
_WIDTH = 0.36


def draw(results: Sequence[Result], path: Path) -> None:
    """Write the plot, SVG or PNG by its name: medians as bars, up to p90 and p99 as lines."""
    panels: tuple[tuple[str, Callable[[Result, Kind], Latency | None]], ...] = (
        ("time to first token", lambda result, kind: result.first(kind)),
        ("inter-token latency", lambda result, kind: result.gap(kind)),
    )
    with drawing(path, "epd") as figure:
        axes: list[Axes] = list(figure.subplots(1, len(panels)))
        for panel, (title, read) in zip(axes, panels, strict=True):
            _panel(panel, results, read)
            panel.set_title(title)
        axes[0].set_ylabel("milliseconds")


def _panel(panel: Axes, results: Sequence[Result], read: Callable[[Result, Kind], Latency | None]) -> None:
    for number, kind in enumerate(KINDS):
        outcome = [(place, read(result, kind)) for place, result in enumerate(results)]
        shift = (number - 0.5) * (_WIDTH + 0.04)
        known = [(place + shift, *vars(latency).values()) for place, latency in outcome if latency is not None]
        if not known:
            continue
        places = [row[0] for row in known]
        medians, nineties, tops = ([1000 * row[column] for row in known] for column in (1, 2, 3))
        panel.bar(places, medians, _WIDTH, color=_COLOURS[kind], label=f"{kind}, median")
        panel.vlines(places, medians, tops, color=_COLOURS[kind], linewidth=1.4)
        panel.scatter(places, nineties, color=_COLOURS[kind], marker="_", s=120, label="p90" if number == 0 else None)
        panel.scatter(places, tops, color=_COLOURS[kind], marker="^", s=24, label="p99" if number == 0 else None)
    panel.set_xticks(range(len(results)), [result.topology for result in results])
    panel.set_ylim(bottom=0)
    panel.grid(visible=True, axis="y", color="#e6e0da", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)

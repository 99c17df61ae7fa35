"""Draws the flowcharts of the pages as SVG for the site; code hosts draw them with mermaid.

Only what our pages use is understood: `a -->|text| b`, `-.->`, `<-->`, `a & b`, `a[text]`, `a[(text)]`, and the place
of each box (column, row) in comments that mermaid skips: `%% place a 0 1`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from typing import Final

WIDTH, HEIGHT = 130, 42
COLUMN, ROW = 225, 92
MARGIN = 8
_NODE: Final = r"(\w+)(?:\[\(?([^\])]+)\)?\])?"
_EDGE: Final = re.compile(r"^(?P<left>.+?)\s*(?P<arrow><-->|-\.->|-->)(?:\|(?P<label>[^|]*)\|)?\s*(?P<right>.+)$")
_PLACE: Final = re.compile(r"^%% place (\w+) ([\d.]+) ([\d.]+)$")
_HEADS: Final = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>'
)


class DrawingError(ValueError):
    """A flowchart has a line that is not understood, or a box without a place."""


@dataclass(frozen=True)
class Edge:
    """An arrow between two boxes.

    Attributes:
        left: Name of the box that it starts from.
        right: Name of the box that it leads to.
        label: What is written on it; may be empty.
        dashed: Drawn as a broken line.
        both: Has a head at either end.
    """

    left: str
    right: str
    label: str
    dashed: bool
    both: bool


@dataclass
class Chart:
    """A flowchart.

    Attributes:
        titles: What is written in each box, by its name.
        places: Column and row of each box.
        edges: The arrows.
    """

    titles: dict[str, str] = field(default_factory=dict)
    places: dict[str, tuple[float, float]] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)


def drawn(source: str) -> str:
    """A flowchart as one line of SVG, to stand in HTML.

    Raises:
        DrawingError: See there.
    """
    chart = read(source)
    wide = max(x for x, _ in chart.places.values()) * COLUMN + WIDTH + 2 * MARGIN
    high = max(y for _, y in chart.places.values()) * ROW + HEIGHT + 2 * MARGIN
    label = escape("; ".join(f"{edge.left} to {edge.right}: {edge.label}" for edge in chart.edges), quote=True)
    parts = [*(_arrow(chart, edge) for edge in chart.edges), *(_box(chart, name) for name in chart.titles)]
    return (
        f'<div class="drawing"><svg viewBox="0 0 {wide:g} {high:g}" style="max-width: {wide:g}px" role="img" '
        f'aria-label="{label}">{_HEADS}{"".join(parts)}</svg></div>\n'
    )


def read(source: str) -> Chart:
    """Take a flowchart apart.

    Raises:
        DrawingError: See there.
    """
    chart = Chart()
    for line in (line.strip() for line in source.splitlines()):
        if place := _PLACE.match(line):
            chart.places[place[1]] = (float(place[2]), float(place[3]))
        elif edge := _EDGE.match(line):
            for left in _nodes(chart, edge["left"]):
                for right in _nodes(chart, edge["right"]):
                    arrow = edge["arrow"]
                    chart.edges.append(Edge(left, right, edge["label"] or "", arrow == "-.->", arrow == "<-->"))
        elif line and not line.startswith(("flowchart ", "%%")):
            raise DrawingError(f"not understood: {line!r}; see tools/docs/drawing.py for what is")
    if lost := sorted(set(chart.titles) - set(chart.places)):
        raise DrawingError(f"no place for {', '.join(lost)}: add a line such as `%% place {lost[0]} 0 1` (column, row)")
    return chart


def _nodes(chart: Chart, text: str) -> list[str]:
    names = []
    for part in text.split("&"):
        match = re.fullmatch(_NODE, part.strip())
        if match is None:
            raise DrawingError(f"not understood: {part.strip()!r}; see tools/docs/drawing.py for what is")
        name, title = match[1], match[2]
        if title or name not in chart.titles:
            chart.titles[name] = title or name
        names.append(name)
    return names


def _box(chart: Chart, name: str) -> str:
    x, y = _centre(chart, name)
    return (
        f'<rect x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        f'<text x="{x:g}" y="{y:g}" class="title">{escape(chart.titles[name])}</text>'
    )


def _arrow(chart: Chart, edge: Edge) -> str:
    (x1, y1), (x2, y2) = _centre(chart, edge.left), _centre(chart, edge.right)
    dx, dy = x2 - x1, y2 - y1
    # From border to border: the part of the way that a box covers.
    inside = min(WIDTH / 2 / abs(dx) if dx else 1.0, HEIGHT / 2 / abs(dy) if dy else 1.0)
    ends = (x1 + dx * inside, y1 + dy * inside, x2 - dx * inside, y2 - dy * inside)
    line = '<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"'.format(*ends)
    dash = ' stroke-dasharray="5 4"' if edge.dashed else ""
    start = ' marker-start="url(#head)"' if edge.both else ""
    text = f'<text x="{(ends[0] + ends[2]) / 2:.1f}" y="{(ends[1] + ends[3]) / 2:.1f}">{escape(edge.label)}</text>'
    return f'{line}{dash}{start} marker-end="url(#head)"/>{text if edge.label else ""}'


def _centre(chart: Chart, name: str) -> tuple[float, float]:
    column, row = chart.places[name]
    return column * COLUMN + WIDTH / 2 + MARGIN, row * ROW + HEIGHT / 2 + MARGIN

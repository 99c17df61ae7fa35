"""The figures as text and as JSON."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

import torch

from bench.host import host
from bench.replay.point import COUNTED, TIMED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.replay.point import Point
    from bench.spread import Spread

NOTES: Final = """\
CPU s: median of a whole prefill; selection: the share of it, replay off, in index queries, scores and top-k.
Ratios: replay off / on, median of the pairs (least-greatest), and what that is of the theory, rows x layers off / on.
shared subtracted: without embedding rows and rotations, Engram, projection and writing of the global entries (layer
20's for all rows among them), and the head. They run alike either way and do not belong to a layer's run over its rows.
selection subtracted: without selection, too. Its cost per row grows with the prompt, and 5 of the 8 layers that select
stand in the decoder half, at one entry a token where the others have one for two: replay leaves out more of it than of
rows x layers, which lifts the ratio before above the theory. The small widths make its share larger than released ones
would."""

_HEAD: Final = (
    ("", "rows x layers", "", "", "", "CPU s", "", "selec-", "ratio", "shared", "% of", "selection", "% of", ""),
    ("E", "off", TIMED, COUNTED, "theory", "off", "on", "tion", "as timed", "subtracted", "theory", "subtracted",
     "theory", "pairs"),
)  # fmt: skip
_WIDTHS: Final = (5, 13, 7, 14, 6, 7, 7, 6, 16, 16, 6, 16, 6, 5)


def table(points: Sequence[Point]) -> str:
    """A block for each number of requests, and what the columns mean."""
    lines = []
    for requests in sorted({len(point.sizes) for point in points}):
        lines += ["1 request" if requests == 1 else f"{requests} requests, prompt lengths 1 : 2 : ... : {requests}"]
        lines += [_row(cells) for cells in _HEAD]
        lines += [_row(_cells(point)) for point in points if len(point.sizes) == requests]
        lines += [""]
    return "\n".join([*lines, NOTES])


def document(points: Sequence[Point]) -> dict[str, Any]:
    """Every figure of every run, and where they were taken."""
    machine = host() | {"torch": torch.__version__, "threads": torch.get_num_threads()}
    return {"machine": machine, "timed": TIMED, "counted": COUNTED, "points": [point.to_json() for point in points]}


def _cells(point: Point) -> list[str]:
    def cost(side: int) -> str:
        return f"{statistics.median(pair[side].seconds for pair in point.pairs):.3f}"

    def ratio(spread: Spread) -> str:
        return f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"

    def share(spread: Spread) -> str:
        return f"{100 * spread.median / point.theory:.1f}"

    selection = statistics.median(off.pieces["selection"] / off.seconds for off, _ in point.pairs)
    return [
        f"{point.rows}",
        *(f"{point.counts[name]}" for name in ("off", TIMED, COUNTED)),
        f"{point.theory:.3f}",
        cost(0),
        cost(1),
        f"{selection:.0%}",
        ratio(point.whole),
        ratio(point.layers),
        share(point.layers),
        ratio(point.linear),
        share(point.linear),
        f"{len(point.pairs)}",
    ]


def _row(cells: Sequence[str]) -> str:
    return " ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()

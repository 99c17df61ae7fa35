"""What every shipped kernel must hold, whatever was measured: `--write` cannot loosen these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from epd_kernels.gate.figures import Figures
    from epd_kernels.gate.target import Target

STREAMS: Final[Mapping[str, Mapping[str, int]]] = {
    "tail_layout/": {},
    "window_slots/": {},
    "row_gather/hidden": {"source": 16, "output": 16},
    "row_gather/streams": {"source": 16, "output": 16},
    "row_gather/": {},
}
"""The buffers that most bytes move through, and the least bytes a lane that they may move at once, by the beginning of
a launch's name; the first that fits counts. A launch without streams moves so little that its width does not matter."""

MATRIX: Final = ("attention/",)
"""Launches, by the beginning of their names, that must use a matrix instruction."""


def streams(launch: str) -> Mapping[str, int] | None:
    """The streams of a launch; None if nobody has said which they are."""
    return next((streams for beginning, streams in STREAMS.items() if launch.startswith(beginning)), None)


def breaches(launch: str, figures: Figures, target: Target) -> Iterator[str]:
    """One line for each rule that a kernel breaks: figure and limit."""
    if figures.spills > target.spills:
        yield f"spills {figures.spills}, limit {target.spills}"
    if figures.shared > target.shared:
        yield f"shared memory {figures.shared} bytes, limit {target.shared}"
    if figures.occupancy < 1:
        yield "occupancy 0, limit 1"
    if launch.startswith(MATRIX) and figures.matrix == "none":
        yield "no matrix instruction, limit any"
    named = streams(launch)
    if named is None:
        yield "streams unknown, limit an entry in gate/rule.py"
    for name, least in (named or {}).items():
        width = figures.access.get(name, 0)
        if width < least:
            yield f"access to {name} {width} bytes a lane, limit {least}"

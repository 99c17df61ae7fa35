"""The report as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.kernels.machine import Machine
    from bench.kernels.point import Point
    from bench.spread import Spread

NOTES: Final = """\
MB, GFLOP: least bytes from and to memory, and operations of the matrix products; every tensor crosses once, selected
and candidate rows once for each query row. reused: MB if no pool row came from memory twice.
floor us: the longer of MB at peak bandwidth and GFLOP at peak bfloat16 rate; bound: which of the two it is. Launching a
kernel alone takes a few microseconds, so a floor below that says nothing about what can be reached."""
UNMEASURED: Final = """\
No time was measured: this machine has no CUDA or HIP device. The floors are lower bounds from the makers' data sheets,
not speeds of these kernels."""
MEASURED: Final = """\
kernel us, torch us: median (least-greatest), caches cold. share: floor / kernel us."""

_HEAD: Final = ("operation", "MB", "reused", "GFLOP", "floor us", "bound", "kernel us", "torch us", "share")
_WIDTHS: Final = (26, 10, 10, 9, 9, 7, 24, 26, 6)
_FLOORS: Final = 6


def table(points: Sequence[Point], machine: Machine | None, gpu: str) -> str:
    """A block for each case, and what the columns mean.

    Args:
        points: At least one.
        machine: Whose peaks make the floors; None if they are not listed.
        gpu: The device that was measured; empty if none was.
    """
    lines = [_peaks(machine, gpu), ""]
    columns = len(_HEAD) if gpu else _FLOORS
    for case in dict.fromkeys(point.case for point in points):
        ours = [point for point in points if point.case == case]
        lines += [f"{case.name}: R = {case.rows(ours[0].sizes.window):,} rows, {case.ratio} token(s) an entry"]
        lines += [_row(_HEAD[:columns])]
        lines += [_row(_cells(point, machine)[:columns]) for point in ours]
        lines += [""]
    return "\n".join([*lines, NOTES, MEASURED if gpu else UNMEASURED])


def document(points: Sequence[Point], machine: Machine | None, gpu: str) -> dict[str, Any]:
    """The same figures; `measured` says whether there are times among them."""
    return {
        "machine": vars(machine) if machine else None,
        "gpu": gpu or None,
        "measured": bool(gpu),
        "note": MEASURED if gpu else UNMEASURED,
        "points": [point.to_json(machine) for point in points],
    }


def _peaks(machine: Machine | None, gpu: str) -> str:
    if machine is None:
        return f"Measured on {gpu}, whose peaks are not listed: give --machine for floors."
    peaks = f"{machine.bandwidth / 1e12:g} TB/s, {machine.flops / 1e12:g} TFLOP/s ({machine.source})"
    return f"Measured on {gpu}; floors of {machine.name}: {peaks}" if gpu else f"Floors of {machine.name}: {peaks}"


def _cells(point: Point, machine: Machine | None) -> list[str]:
    least = point.operation.least(point.case, point.sizes)
    reused = point.operation.reused
    cells = [
        point.operation.name,
        f"{least.bytes / 1e6:.3f}",
        f"{reused(point.case, point.sizes).bytes / 1e6:.3f}" if reused else "",
        f"{least.flops / 1e9:.2f}" if least.flops else "",
        f"{machine.floor(least) * 1e6:.2f}" if machine else "",
        "",
        "",
        "",
        "",
    ]
    if machine:
        cells[5] = "memory" if machine.memory_seconds(least) >= machine.matrix_seconds(least) else "matrix"
    if point.measured:
        cells[6], cells[7] = _time(point.measured.kernel), _time(point.measured.torch)
        cells[8] = f"{machine.floor(least) / point.measured.kernel.median:.0%}" if machine else ""
    return cells


def _time(spread: Spread) -> str:
    return f"{spread.median * 1e6:.1f} ({spread.low * 1e6:.1f}-{spread.high * 1e6:.1f})"


def _row(cells: Sequence[str]) -> str:
    first, *others = zip(cells, _WIDTHS, strict=False)
    return " ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()

"""The window pool: how long a window takes, what it saves a returning turn, and how often it is there.

Real servers on this machine: Valkey, Mooncake's master and two stores, `epd-reference`. All of them and the bench share
its cores: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.epd.fleet import NotStarted
from bench.swapool import figure, latency, replay, turn
from bench.swapool.results import Results
from bench.swapool.table import text
from bench.swapool.trace import turns

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTS: Final = ("latency", "turns", "hits")
PLOTS: Final = Path(__file__).parents[2] / "docs" / "images"
_QUICK_LATENCY: Final = latency.Effort(rounds=2, seconds=0.03, sizes=(64 << 10, 1_351_680), clients=(1, 2))
_QUICK_TURNS: Final = turn.Effort(rounds=2, tokens=(256,))
_QUICK_HITS: Final = ((60.0, 300.0), (1000, 4000), (1,))


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        parts: Of `PARTS`, in their order.
        quick: A short look.
        plots: Folder that the plots go to; None draws none.
        json: Print JSON.
    """

    parts: tuple[str, ...]
    quick: bool
    plots: Path | None
    json: bool


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; a bad value ends the process with a message and status 2."""
    parser = argparse.ArgumentParser(prog="python -m bench.swapool", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help="latency, turns, hits; all")
    add("--quick", action="store_true", help="a short look: few points, no plots unless --plots is given")
    add("--plots", type=Path, metavar="DIR", help="folder of the SVGs; default: docs/images")
    add("--json", action="store_true", help="one JSON object with every figure instead of tables")
    given = parser.parse_args(arguments)
    return Options(
        parts=tuple(part for part in PARTS if part in given.only),
        quick=given.quick,
        plots=given.plots or (None if given.quick else PLOTS),
        json=given.json,
    )


def measure(options: Options, folder: Path) -> Results:
    """All parts that are asked for.

    Raises:
        NotStarted: A server did not start.
        RuntimeError: The pool did not do what was to be timed.
    """
    results = Results()
    if "latency" in options.parts:
        amount = _QUICK_LATENCY if options.quick else latency.Effort()
        points = (point for engine in latency.ENGINES for point in latency.measure(engine, amount, folder, _tell))
        results = Results(latency=tuple(points))
    if "turns" in options.parts:
        effort = _QUICK_TURNS if options.quick else turn.Effort()
        results = Results(results.latency, tuple(turn.measure(effort, folder, _tell)))
    if "hits" in options.parts:
        grid = _QUICK_HITS if options.quick else (replay.TTLS, replay.WINDOWS, replay.COPIES)
        results = Results(results.latency, results.turns, tuple(_cells(*grid)))
    return results


def _cells(ttls: Sequence[float], windows: Sequence[int], copies: Sequence[int]) -> list[replay.Cell]:
    cells = []
    for number, ttl, size in product(copies, ttls, windows):
        _tell(f"trace x {number}, {ttl:g} s, {size:,} windows")
        cells.append(replay.replay(turns(), ttl, size, number))
    return cells


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures and write the plots; the exit status is 1 if something could not be measured."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as name:
        try:
            results = measure(options, Path(name))
        except (NotStarted, RuntimeError) as error:
            print(f"python -m bench.swapool: {error}", file=sys.stderr)
            return 1
    if options.plots is not None:
        for path in figure.draw(results, options.plots):
            _tell(f"drawn: {path}")
    print(json.dumps(results.to_json()) if options.json else text(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

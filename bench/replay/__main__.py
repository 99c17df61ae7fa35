"""Prefill cost with and without decoder bounded replay: CPU time of one thread, and rows x layers counted exactly.

A 40-layer model in the released structure with small widths and untrained weights, float32, FP4 caches, whole prompts
in one step. Alternating pairs of runs, replay off and on (preset 0.5.23); the other preset is only counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from bench import plot
from bench.replay import figure
from bench.replay.meter import Meter
from bench.replay.model import CONTEXT, lengths, load
from bench.replay.point import measure
from bench.replay.table import document, table
from epd_workers.reference.training.arguments import whole

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTHS: Final = (128, 256, 512, 1024, 2048, 4096, 8192)
REQUESTS: Final = (1, 8)
PAIRS: Final = 9
LONG: Final = 4096
LONG_PAIRS: Final = 5
QUICK_LENGTHS: Final = (128, 256, 512)
QUICK_PAIRS: Final = 3
PLOT: Final = Path(__file__).parents[2] / "docs" / "images" / "replay.svg"


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        lengths: E of each point, rising.
        requests: Requests that share the E tokens.
        pairs: Pairs at every E; None takes fewer for the long ones.
        quick: A look within seconds instead.
        plot: Where the plot goes; None draws none.
        json: Print JSON.
    """

    lengths: tuple[int, ...]
    requests: tuple[int, ...]
    pairs: int | None
    quick: bool
    plot: Path | None
    json: bool

    def pairs_at(self, rows: int) -> int:
        """Pairs to run at this E."""
        if self.pairs is not None:
            return self.pairs
        if self.quick:
            return QUICK_PAIRS
        return LONG_PAIRS if rows >= LONG else PAIRS


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; a bad value ends the process with a message and status 2."""
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    add = parser.add_argument
    add("--lengths", type=whole(1), nargs="+", metavar="E", help=f"default: {' '.join(map(str, LENGTHS))}")
    add("--requests", type=whole(1), nargs="+", metavar="N", help="that share the E tokens; default: 1 8")
    add("--pairs", type=whole(1), metavar="N", help=f"default: {PAIRS}, from E = {LONG} on {LONG_PAIRS}")
    add("--quick", action="store_true", help="a short look: few lengths, few pairs, no plot unless --plot is given")
    add("--plot", type=plot.file, metavar="FILE", help="SVG or PNG; default: docs/images/replay.svg")
    add("--json", action="store_true", help="one JSON object with every run instead of a table")
    given = parser.parse_args(arguments)
    options = Options(
        lengths=tuple(sorted(set(given.lengths or (QUICK_LENGTHS if given.quick else LENGTHS)))),
        requests=tuple(sorted(set(given.requests or REQUESTS))),
        pairs=given.pairs,
        quick=given.quick,
        plot=given.plot or (None if given.quick else PLOT),
        json=given.json,
    )
    least, most, requests = options.lengths[0], options.lengths[-1], options.requests[-1]
    if most > CONTEXT:
        parser.error(f"--lengths has {most}: must be at most {CONTEXT}")
    if min(lengths(least, requests)) < 1:
        parser.error(f"--lengths has {least}: too few tokens for {requests} requests of different lengths")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures and write the plot."""
    options = parse(arguments)
    torch.set_num_threads(1)
    model = load()
    meter = Meter(model, options.lengths[-1], options.requests[-1])
    points = []
    for requests in options.requests:
        for rows in options.lengths:
            where = f"{requests} request{'s' * (requests > 1)}, E = {rows}"

            def tell(what: str, where: str = where) -> None:
                print(f"{where}: {what}", file=sys.stderr, flush=True)

            pairs = options.pairs_at(rows)
            points.append(measure(model, meter, rows=rows, requests=requests, pairs=pairs, tell=tell))
    if options.plot is not None:
        figure.draw(points, options.plot)
    print(json.dumps(document(points)) if options.json else table(points))


if __name__ == "__main__":
    main()

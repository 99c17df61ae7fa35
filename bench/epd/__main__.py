"""Time to first token and inter-token latency of aggregated, P/D and E/P/D, through the real router.

Router and servers are processes of this machine and share its CPU cores, so splitting cannot be faster here: the
figures show what it costs. Half the requests are text and half pictures, the same ones for every topology.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import plot
from bench.epd import figure
from bench.epd.fleet import TOPOLOGIES, NotStarted, running
from bench.epd.load import SIDES, WORDS, drive, requests
from bench.epd.table import Result, document, table
from epd_workers.reference.training.arguments import number, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNT: Final = 60
QUICK_COUNT: Final = 8
RATE: Final = 0.5
CONCURRENCY: Final = 8
TOKENS: Final = 32
SEED: Final = 0
WARM: Final = 4
PLOT: Final = Path(__file__).parents[2] / "docs" / "images" / "epd.svg"


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        topologies: Names, in order.
        requests: Requests per topology.
        rate: Requests a second.
        concurrency: Most requests at once.
        tokens: Of every answer.
        seed: Of the requests.
        model_path: Directory of the checkpoint; None takes the packaged one.
        plot: Where the plot goes; None draws none.
        json: Print JSON.
    """

    topologies: tuple[str, ...]
    requests: int
    rate: float
    concurrency: int
    tokens: int
    seed: int
    model_path: Path | None
    plot: Path | None
    json: bool

    @property
    def flags(self) -> tuple[str, ...]:
        """More flags for every server."""
        return () if self.model_path is None else ("--model-path", str(self.model_path))

    @property
    def load(self) -> dict[str, Any]:
        """What is sent."""
        return {
            "requests": self.requests,
            "rate_per_s": self.rate,
            "arrivals": "Poisson, open loop",
            "concurrency": self.concurrency,
            "answer_tokens": self.tokens,
            "text_words": list(WORDS),
            "picture_sides": list(SIDES),
            "seed": self.seed,
        }

    @property
    def sentence(self) -> str:
        """The same in words."""
        return (
            f"{self.requests} requests a topology, half text ({WORDS[0]} to {WORDS[1]} words), half one picture "
            f"({SIDES[0]} to {SIDES[1]} pixels a side), {self.tokens} tokens an answer;\n"
            f"open loop, {self.rate:g} a second (Poisson, seed {self.seed}), at most {self.concurrency} at once\n"
        )


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; a bad value ends the process with a message and status 2."""
    parser = argparse.ArgumentParser(prog="python -m bench.epd", description=__doc__)
    add = parser.add_argument
    add("--topologies", nargs="+", choices=TOPOLOGIES, default=list(TOPOLOGIES), help="default: all")
    add("--requests", type=whole(1), metavar="N", help=f"requests per topology; default: {COUNT}")
    add("--rate", type=number(zero=False), default=RATE, metavar="R", help=f"requests a second; default: {RATE}")
    add("--concurrency", type=whole(1), default=CONCURRENCY, metavar="N", help=f"at once; default: {CONCURRENCY}")
    add("--tokens", type=whole(1), default=TOKENS, metavar="N", help=f"of every answer; default: {TOKENS}")
    add("--seed", type=int, default=SEED, metavar="N", help=f"of the requests; default: {SEED}")
    add("--model-path", type=Path, metavar="DIR", help="directory of the checkpoint; default: the packaged one")
    add("--quick", action="store_true", help=f"a short look: {QUICK_COUNT} requests, no plot unless --plot is given")
    add("--plot", type=plot.file, metavar="FILE", help="SVG or PNG; default: docs/images/epd.svg")
    add("--json", action="store_true", help="one JSON object with every request instead of a table")
    given = parser.parse_args(arguments)
    return Options(
        topologies=tuple(dict.fromkeys(given.topologies)),
        requests=given.requests or (QUICK_COUNT if given.quick else COUNT),
        rate=given.rate,
        concurrency=given.concurrency,
        tokens=given.tokens,
        seed=given.seed,
        model_path=given.model_path,
        plot=given.plot or (None if given.quick else PLOT),
        json=given.json,
    )


async def measure(topology: str, options: Options, folder: Path) -> Result:
    """Start a topology, warm it up, send the requests.

    Raises:
        NotStarted: It did not start.
    """

    def tell(text: str) -> None:
        print(f"{topology}: {text}", file=sys.stderr, flush=True)

    tell("starting")
    async with running(topology, options.flags, folder) as fleet:
        tell("warming up")
        warm = requests(WARM, WARM, options.tokens, options.seed + 1)
        await drive(fleet.session, fleet.url, warm, options.concurrency, lambda _: None)
        wanted = requests(options.requests, options.rate, options.tokens, options.seed)
        before, start = fleet.cpu_seconds, time.perf_counter()
        every = max(1, options.requests // 6)

        def progress(done: int) -> None:
            if done % every == 0:
                tell(f"{done} of {options.requests} answered")

        samples = await drive(fleet.session, fleet.url, wanted, options.concurrency, progress)
        return Result(topology, tuple(samples), fleet.cpu_seconds - before, time.perf_counter() - start)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures and write the plot; the exit status is 1 if a request or a process failed."""
    options = parse(arguments)
    results = []
    try:
        with tempfile.TemporaryDirectory() as name:
            for topology in options.topologies:
                folder = Path(name, topology.replace("/", "-"))
                folder.mkdir()
                results.append(asyncio.run(measure(topology, options, folder)))
    except NotStarted as error:
        print(f"python -m bench.epd: {error}", file=sys.stderr)
        return 1
    if options.plot is not None:
        figure.draw(results, options.plot)
    print(json.dumps(document(results, options.load)) if options.json else table(results, options.sentence))
    return int(any(result.faults for result in results))


if __name__ == "__main__":
    raise SystemExit(main())

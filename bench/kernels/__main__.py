"""The least time of every kernel at released sizes, and on a CUDA or HIP device how close the kernels come to it.

Without such a device the floors are printed, and that no time was measured. With one, every operation is first compared
with the torch reference, then both are timed with caches cold.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from bench.kernels import table
from bench.kernels.case import CASES
from bench.kernels.machine import MACHINES, find
from bench.kernels.point import Disagreement, points, timed
from bench.kernels.registry import OPERATIONS
from bench.kernels.timing import clock
from epd_kernels import dispatch
from epd_kernels.sizes import RELEASED
from epd_workers.reference.training.arguments import whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.kernels.machine import Machine
    from bench.kernels.point import Point
    from bench.kernels.registry import Operation

REPEATS: Final = 30
DEFAULT: Final = MACHINES[0]


@dataclass(frozen=True)
class Options:
    """What to print.

    Attributes:
        operations: The lines.
        machine: Whose floors; None takes the GPU's own, without a GPU H200's.
        repeats: Calls of each implementation.
        json: Print JSON.
    """

    operations: tuple[Operation, ...]
    machine: Machine | None
    repeats: int
    json: bool


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; a bad value ends the process with a message and status 2."""
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    names = [operation.name for operation in OPERATIONS]
    add = parser.add_argument
    add("--only", nargs="+", choices=names, metavar="NAME", help=f"some operations: {'; '.join(names)}")
    add(
        "--machine",
        choices=[machine.name for machine in MACHINES],
        help="whose floors; default: the GPU's here, else H200's",
    )
    add("--repeats", type=whole(1), default=REPEATS, metavar="N", help=f"timed calls; default: {REPEATS}")
    add("--json", action="store_true", help="one JSON object with every stream's bytes instead of a table")
    given = parser.parse_args(arguments)
    chosen = tuple(each for each in OPERATIONS if given.only is None or each.name in given.only)
    return Options(chosen, find(given.machine) if given.machine else None, given.repeats, given.json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; the exit status is 1 where the kernels cannot run or are wrong."""
    options = parse(arguments)
    measured = list(points(options.operations, CASES, RELEASED))
    gpu = ""
    machine: Machine | None = options.machine or DEFAULT
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_name()
        machine = options.machine or find(gpu)
        try:
            measured = _measure(measured, options.repeats)
        except (dispatch.Unavailable, Disagreement) as error:
            print(f"Error: {error}", file=sys.stderr)
            return 1
    report = table.document(measured, machine, gpu)
    print(json.dumps(report) if options.json else table.table(measured, machine, gpu))
    return 0


def _measure(planned: Sequence[Point], repeats: int) -> list[Point]:
    device = torch.device("cuda")
    return list(
        timed(
            planned,
            clock(device),
            kernels=dispatch.load("triton", device),
            baseline=dispatch.load("torch", device),
            device=device,
            repeats=repeats,
            tell=lambda what: print(what, file=sys.stderr, flush=True),
        )
    )


if __name__ == "__main__":
    sys.exit(main())

"""One line of the report: an operation at a case, its floor, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from bench.kernels.calls import CALLS
from bench.kernels.inputs import Inputs
from bench.kernels.timing import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from bench.kernels.case import Case
    from bench.kernels.machine import Machine
    from bench.kernels.registry import Operation
    from bench.kernels.timing import Clock
    from bench.spread import Spread
    from epd_kernels.dispatch import Operations
    from epd_kernels.sizes import Sizes


class Disagreement(AssertionError):
    """The kernels and torch give different results: a time would mean nothing."""


@dataclass(frozen=True)
class Measured:
    """Seconds of one operation.

    Attributes:
        kernel: Of the Triton kernels.
        torch: Of the torch reference.
    """

    kernel: Spread
    torch: Spread


@dataclass(frozen=True)
class Point:
    """An operation at a case.

    Attributes:
        operation: Which.
        case: Where.
        sizes: The model's.
        measured: None where no GPU is.
    """

    operation: Operation
    case: Case
    sizes: Sizes
    measured: Measured | None = None

    def to_json(self, machine: Machine | None) -> dict[str, Any]:
        """Every figure; times in microseconds, floors of `machine` where its peaks are known."""
        least = self.operation.least(self.case, self.sizes)
        result: dict[str, Any] = {
            "operation": self.operation.name,
            "case": self.case.name,
            "rows": self.case.rows(self.sizes.window),
            "least_bytes": least.bytes,
            "flops": least.flops,
            "streams": {stream.name: {"bytes": stream.bytes, "written": stream.written} for stream in least.streams},
        }
        if self.operation.reused:
            result["least_bytes_reused"] = self.operation.reused(self.case, self.sizes).bytes
        if machine:
            result["floor_us"] = round(machine.floor(least) * 1e6, 4)
        if self.measured:
            for name, spread in vars(self.measured).items():
                result[f"{name}_us"] = {key: round(value * 1e6, 3) for key, value in vars(spread).items()}
            if machine:
                result["share_of_floor"] = round(machine.floor(least) / self.measured.kernel.median, 4)
        return result


def compare(name: str, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """See that two implementations agree: integers bit for bit, others within bfloat16's precision.

    Raises:
        Disagreement: They do not.
    """
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one.is_floating_point():
            same = torch.allclose(one.float(), other.float(), rtol=2e-2, atol=2e-2)
        else:
            same = torch.equal(one, other)
        if not same:
            raise Disagreement(f"{name}: result {number} of the kernels is not what torch gives")


def points(operations: Sequence[Operation], cases: Sequence[Case], sizes: Sizes) -> Iterator[Point]:
    """All lines, nothing measured."""
    for case in cases:
        for operation in operations:
            if operation.occurs(case):
                yield Point(operation, case, sizes)


def timed(
    outcome: Sequence[Point],
    timer: Clock,
    *,
    kernels: Operations,
    baseline: Operations,
    device: torch.device,
    repeats: int,
    tell: Callable[[str], None],
) -> Iterator[Point]:
    """The same lines, measured.

    Raises:
        Disagreement: A kernel gives something else than torch.
    """
    inputs: Inputs | None = None
    for point in outcome:
        if inputs is None or inputs.case != point.case:
            inputs = Inputs(point.case, point.sizes, device)
        name = point.operation.name
        tell(f"{point.case.name}: {name}")
        run = CALLS[name](inputs).run
        # Results may be views of one pool: keep a copy of the first before the second writes.
        compare(name, [result.clone() for result in run(kernels)], run(baseline))
        times = [measure(partial(run, one), timer, repeats) for one in (kernels, baseline)]
        yield Point(point.operation, point.case, point.sizes, Measured(*times))

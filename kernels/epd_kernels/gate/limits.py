"""The committed table of limits, and what breaks them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import triton

from epd_kernels.gate import rule
from epd_kernels.gate.figures import Figures
from epd_kernels.gate.target import TARGETS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from epd_kernels.gate.measurement import Measured

PATH: Final = Path(__file__).parent / "limits.json"
_MOST: Final = {
    "registers": "registers",
    "spills": "spills",
    "stack": "stack bytes",
    "shared": "bytes of shared memory",
    "barriers": "barriers",
}


class OtherTriton(RuntimeError):
    """The limits belong to another version of Triton, whose figures differ."""


class Damaged(RuntimeError):
    """The limits are missing or unreadable."""


def load() -> Measured:
    """The committed limits.

    Raises:
        OtherTriton: They were measured with a version of Triton that is not installed.
        Damaged: The table is missing or cannot be read.
    """
    try:
        table = json.loads(PATH.read_text())
        version = table["triton"]
        if version == triton.__version__:
            return {
                launch: {target: _figures(figures) for target, figures in targets.items()}
                for launch, targets in table["limits"].items()
            }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(
            f"{PATH} is not a table of limits ({error!r}): restore it, or measure again with --write"
        ) from error
    raise OtherTriton(
        f"the limits are those of triton {version} and triton {triton.__version__} is installed: install "
        f"triton {version}, or measure again with --write"
    )


def dump(measured: Measured) -> str:
    """The text of a table of limits that is what was measured: one line for each launch and target."""
    launches = []
    for launch, targets in measured.items():
        lines = [f"   {json.dumps(name)}: {json.dumps(asdict(figures))}" for name, figures in targets.items()]
        launches.append(f"  {json.dumps(launch)}: {{\n" + ",\n".join(lines) + "\n  }")
    body = ",\n".join(launches)
    return f'{{\n "triton": {json.dumps(triton.__version__)},\n "limits": {{\n{body}\n }}\n}}\n'


def broken_rules(measured: Measured) -> list[str]:
    """One line for each kernel, target and figure that breaks a rule, whatever the table says."""
    return [
        f"{launch} on {name}: {breach}"
        for launch, targets in measured.items()
        for name, figures in targets.items()
        for breach in rule.breaches(launch, figures, TARGETS[name])
    ]


def breaches(measured: Measured, limits: Measured, *, everything: bool = True) -> list[str]:
    """One line for each kernel, target and figure past its limit or a rule.

    Args:
        measured: What was.
        limits: What may be.
        everything: Whether all was measured, so that a limit without a kernel is a leftover.
    """
    lines = broken_rules(measured)
    for launch, targets in measured.items():
        for name, figures in targets.items():
            limit = limits.get(launch, {}).get(name)
            if limit is None:
                lines.append(f"{launch} on {name}: no limits, write them with --write")
            else:
                lines += (f"{launch} on {name}: {breach}" for breach in _past(figures, limit))
    if everything:
        lines += (
            f"{launch} on {name}: limits, but no such launch: remove them with --write"
            for launch, targets in limits.items()
            for name in targets
            if name not in measured.get(launch, {})
        )
    return lines


def _past(figures: Figures, limit: Figures) -> Iterator[str]:
    for name, unit in _MOST.items():
        figure, most = getattr(figures, name), getattr(limit, name)
        if figure > most:
            yield f"{figure} {unit}, limit {most}"
    if figures.occupancy < limit.occupancy:
        yield f"{figures.occupancy} programs on a multiprocessor, limit {limit.occupancy}"
    if figures.matrix != limit.matrix:
        yield f"matrix instruction {figures.matrix}, limit {limit.matrix}"
    yield from _narrower(figures.access, limit.access)


def _narrower(measured: Mapping[str, tuple[int, ...]], limit: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    for name, least in limit.items():
        widths = measured.get(name, least)
        if widths[-1] < least[-1] or widths[0] < least[0]:
            yield f"access to {name} {spread(widths)} bytes a lane, limit {spread(least)}"


def spread(widths: Sequence[int]) -> str:
    """The least and the largest of rising widths."""
    return str(widths[-1]) if widths[0] == widths[-1] else f"{widths[0]} to {widths[-1]}"


def _figures(plain: dict[str, Any]) -> Figures:
    access = {name: tuple(widths) for name, widths in plain["access"].items()}
    figures = Figures(**plain | {"access": access})
    numbers = [*(getattr(figures, name) for name in _MOST), figures.occupancy, *(n for w in access.values() for n in w)]
    if not all(isinstance(number, int) for number in numbers) or not all(access.values()):
        raise ValueError(f"figures {plain}")
    return figures


def write(measured: Measured) -> None:
    """Make what was measured the limits."""
    PATH.write_text(dump(measured))

"""Compile every launch for every target, as its launcher would, and read the result."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import torch

from epd_kernels.gate import access, amd, nvidia
from epd_kernels.gate.target import TARGETS, Target, active
from epd_kernels.sizes import RELEASED
from epd_kernels.warmup import OPERATIONS, launches_of, vast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from epd_kernels.gate.figures import Figures
    from epd_kernels.launching import Launch

Measured = dict[str, dict[str, "Figures"]]
"""By launch and target."""


def measure(targets: Sequence[str] = tuple(TARGETS), operations: Sequence[str] = OPERATIONS) -> Measured:
    """The figures of every launch at released sizes; the compilations share the processors.

    Args:
        targets: Names of targets.
        operations: Names of packages.

    Raises:
        RuntimeError: Triton interprets in this process.
    """
    # The slowest first, so that no processor waits at the end for one long compilation.
    tasks = [(operation, target) for target in reversed(targets) for operation in reversed(operations)]
    result: Measured = {}
    # A forked process would share its parent's threads' locks, and Triton's driver.
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(tasks)), mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_measure, *task) for task in tasks]):
            for name, target, figures in done.result():
                result.setdefault(name, {})[target] = figures
    order = {name: place for place, name in enumerate(operations)}
    return {
        name: {target: result[name][target] for target in targets if target in result[name]}
        for name in sorted(result, key=lambda name: order[name.partition("/")[0]])
    }


def _measure(operation: str, target: str) -> list[tuple[str, str, Figures]]:
    torch.set_num_threads(1)
    return [(name, target, figures) for name, figures in figures_of(operation, TARGETS[target])]


def figures_of(operation: str, target: Target) -> Iterator[tuple[str, Figures]]:
    """The figures of one operation's launches for one target."""
    with active(target):
        for name, launch in launches_of(operation, RELEASED, torch.device("cpu")):
            yield name, read(launch, target)


def read(launch: Launch, target: Target) -> Figures:
    """Compile a launch for the active target, with pools as large as they are served, and read its figures."""
    compiled: Any = vast(launch).compile()
    assembly: Mapping[str, Any] = compiled.asm
    moved = access.widths(assembly["llir"], access.parameters(assembly["ttir"]))
    assert compiled.metadata.target == target.gpu, f"compiled for {compiled.metadata.target}, not {target.gpu}"
    if target.nvidia:
        return nvidia.read(compiled, moved)
    return amd.read(compiled, moved, target.shared)

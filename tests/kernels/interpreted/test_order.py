"""No result depends on the order of programs, on repeats, on what lies around a buffer, or on what lay in it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from epd_kernels.architecture import Architecture
from epd_kernels.dispatch import load
from epd_kernels.launching import Launch
from epd_kernels.warmup import launches
from epd_kernels.window_slots import tiles as window_slots
from tests.kernels.cases import SMALL, cases
from tests.kernels.interpreted import faulty
from tests.kernels.interpreted.programs import FINITE, NAN, examined, faults

if TYPE_CHECKING:
    from torch import Tensor

    from tests.kernels.interpreted.programs import Findings

CPU = torch.device("cpu")
CASES = list(cases(SMALL))


class Filled(TorchDispatchMode):
    """Fills what torch hands out uninitialised."""

    def __init__(self, pattern: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not say
        self.pattern = pattern

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if "empty" in func.__name__ and made.numel() and made.is_contiguous():
            made.view(-1).view(torch.uint8).fill_(self.pattern & 1 if made.dtype is torch.bool else self.pattern)
        return made


@cache
def look(number: int) -> tuple[Findings, list[Tensor]]:
    """Examine one case, and what comes out of it."""
    with examined() as findings, Filled(NAN):
        made = CASES[number].run(load("triton", CPU))
    return findings, made


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_every_launch_of_every_operation(number: int) -> None:
    findings, made = look(number)
    assert findings.faults == []
    assert findings.kernels
    with Filled(FINITE):
        again = CASES[number].run(load("triton", CPU))
    for one, other in zip(made, again, strict=True):
        assert raw(one) == raw(other)


def test_a_window_that_several_programs_share() -> None:
    """No shipped tile is narrower than the window, so the cases have one program a row."""
    numbers = [number for number, case in enumerate(CASES) if "_slots" in case.name]
    narrow = {Architecture.INTERPRETER: window_slots.Tile(slots=8, columns=2, warps=1)}
    for number in numbers:
        with examined() as findings, patch.dict(window_slots.TILES, narrow):
            CASES[number].run(load("triton", CPU))
        assert findings.faults == []
        assert findings.kernels


def test_every_kernel_is_among_them() -> None:
    seen = {kernel for number in range(len(CASES)) for kernel in look(number)[0].kernels}
    assert {launch.name for _, launch in launches(SMALL, CPU)} <= seen


def raw(tensor: Tensor) -> list[int]:
    """Bytes."""
    actual: list[int] = tensor.contiguous().view(-1).view(torch.uint8).tolist()
    return actual


def launch(kernel: Any) -> Launch:
    """Of four programs, on the middle of longer buffers."""
    source, output = torch.arange(1.0, 9.0)[2:6], torch.zeros(8)[2:6]
    return Launch(kernel, (4,), (source, output), writes=("output",))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (faulty.halves, "byte 0 of output is written by two programs"),
        (faulty.neighbours, "byte 0 of output is written by one program and read by another"),
        (faulty.counted, "run twice each, in random orders, output comes out differently"),
        (faulty.beyond, "program 3 writes bytes that are in none of those it declares to write: byte 16 of output"),
        (faulty.peeking, "program 3 reads bytes that are in none of its arguments: byte 16 of source"),
        (faulty.scribbling, "writes bytes that are in none of those it declares to write: byte 0 of source"),
        (faulty.summed, "an atomic operation"),
    ],
)
def test_a_bad_kernel_is_caught(kernel: Any, message: str) -> None:
    actual = faults(launch(kernel))
    assert any(message in fault for fault in actual), actual
    assert all(fault.startswith(kernel.fn.__name__) for fault in actual)


@pytest.mark.parametrize(
    ("kernel", "message"), [(faulty.halves, "output comes out differently"), (faulty.beyond, "changes byte")]
)
def test_runs_alone_show_it_too(kernel: Any, message: str) -> None:
    """An access that is overlooked still has its consequences."""
    actual = faults(launch(kernel))
    assert [fault for fault in actual if "run " in fault and message in fault], actual


def test_a_sound_kernel_passes_and_its_buffers_stay() -> None:
    sound = launch(faulty.copied)
    before = [one.clone() for one in sound.arguments]
    assert faults(sound) == []
    assert all(torch.equal(one, other) for one, other in zip(sound.arguments, before, strict=True))

"""The GPUs that kernels are compiled for, none of which has to be there."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import triton
from triton.backends.compiler import GPUTarget

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Target:
    """One GPU and what its multiprocessor (on AMD: compute unit) has.

    Attributes:
        name: As in `Architecture`.
        gpu: As Triton names it.
        device: A number of its own: Triton keeps compiled kernels only by device number, so two targets with one
            number would both get the first one's code.
        shared: Bytes of shared memory that a program may have.
        spills: Most spills of a shipped kernel: bytes on NVIDIA, registers on AMD.
    """

    name: str
    gpu: GPUTarget
    device: int
    shared: int
    spills: int = 0

    @property
    def nvidia(self) -> bool:
        """Whether the code is PTX."""
        return bool(self.gpu.backend == "cuda")


TARGETS: Final = {
    target.name: target
    for target in (
        Target("sm_90", GPUTarget("cuda", 90, 32), device=1, shared=227 * 1024),
        Target("sm_100", GPUTarget("cuda", 100, 32), device=2, shared=227 * 1024),
        Target("gfx942", GPUTarget("hip", "gfx942", 64), device=3, shared=64 * 1024, spills=128),
        Target("gfx950", GPUTarget("hip", "gfx950", 64), device=4, shared=160 * 1024),
    )
}
"""By name. Shared memory: CUDA C++ Programming Guide, compute capabilities 9.0 and 10.0; AMD CDNA 3 and CDNA 4 ISA."""


@dataclass(frozen=True)
class StubDriver:
    """What a launcher asks a driver before it compiles."""

    target: Target

    def get_current_target(self) -> GPUTarget:
        """The GPU."""
        return self.target.gpu

    def get_current_device(self) -> int:
        """Its number."""
        return self.target.device

    def get_current_stream(self, device: int = 0) -> int:  # noqa: ARG002 the driver's interface
        """There is none to launch on."""
        return 0


@contextmanager
def active(target: Target) -> Iterator[None]:
    """Let Triton compile for a target.

    Raises:
        RuntimeError: Triton interprets in this process.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: nothing would be compiled; unset it")
    driver: Any = triton.runtime.driver
    driver.set_active(StubDriver(target))
    try:
        yield
    finally:
        driver.set_active(None)  # the next caller finds the GPU that is there

"""What a compiler made of one kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Figures:
    """One kernel's, as compiled for one target.

    Attributes:
        kernel: The function's name.
        registers: A lane's; on AMD vector and accumulation registers together.
        spills: Bytes of spill stores and loads in the code (NVIDIA), or spilled vector registers (AMD).
        stack: Bytes of a lane's private memory.
        shared: Bytes of shared memory (LDS) of a program.
        barriers: Barriers of the whole program in the code.
        occupancy: Programs that fit on a multiprocessor (compute unit) at once.
        matrix: The matrix instruction: wgmma, tcgen05, mma.sync, mfma or none.
        access: Bytes a lane moves at once, of all accesses to a buffer, rising, by the parameter that points at it.
    """

    kernel: str
    registers: int
    spills: int
    stack: int
    shared: int
    barriers: int
    occupancy: int
    matrix: str = "none"
    access: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

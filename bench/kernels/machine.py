"""GPUs and their peaks, as their makers print them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bench.kernels.cost import Cost


@dataclass(frozen=True)
class Machine:
    """One GPU.

    Attributes:
        name: As its driver calls it, or a part of that.
        bandwidth: Bytes a second from and to its memory.
        flops: bfloat16 matrix operations a second without sparsity: half of what is printed with it.
        source: Where both stand.
    """

    name: str
    bandwidth: float
    flops: float
    source: str

    def memory_seconds(self, cost: Cost) -> float:
        """The least time for a call's bytes."""
        return cost.bytes / self.bandwidth

    def matrix_seconds(self, cost: Cost) -> float:
        """The least time for a call's matrix products."""
        return cost.flops / self.flops

    def floor(self, cost: Cost) -> float:
        """Seconds below which no call can be: bytes and products at their peaks, wholly overlapped, no launch cost."""
        return max(self.memory_seconds(cost), self.matrix_seconds(cost))


MACHINES: Final = (
    Machine("H200", 4.8e12, 989e12, "NVIDIA H200 SXM data sheet: 4.8 TB/s; BF16 1,979 TFLOPS with sparsity"),
    Machine("B200", 8.0e12, 2250e12, "NVIDIA DGX B200 data sheet, an eighth: 64 TB/s; BF16 36 PFLOPS with sparsity"),
    Machine("MI300X", 5.3e12, 1307e12, "AMD Instinct MI300X data sheet: 5.3 TB/s; BF16 1,307.4 TFLOPS"),
    Machine("MI355X", 8.0e12, 2500e12, "AMD Instinct MI355X data sheet: 8 TB/s; BF16 2.5 PFLOPS"),
)


def find(name: str) -> Machine | None:
    """The machine that a driver's device name means; None for one whose peaks are not listed."""
    parts = name.split()
    # The H200 NVL is slower than the SXM module.
    return next((machine for machine in MACHINES if machine.name in parts and "NVL" not in parts), None)

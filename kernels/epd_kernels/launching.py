"""One launch of one kernel, which can be run or only compiled, and what all kernels ask of tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True)
class Launch:
    """A kernel with everything it is called with.

    Attributes:
        kernel: A `triton.jit` function.
        grid: Programs in up to three dimensions.
        arguments: In the kernel's order, without its compile-time constants.
        options: Compile-time constants, `num_warps`, `num_stages`.
        writes: Names of the kernel's parameters that it writes.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    writes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.__name__)

    def run(self) -> None:
        """Launch; a grid without programs is nothing to do."""
        if 0 not in self.grid:
            self.kernel[self.grid](*self.arguments, **self.options)

    def compile(self) -> Any:
        """Compile exactly what `run` would launch, without launching it; the compiled kernel."""
        return self.kernel.warmup(*self.arguments, grid=self.grid, **self.options)


def check_shapes(**given: tuple[Tensor, tuple[int, ...]]) -> None:
    """See that tensors have the shapes that a kernel, which sees no shapes, takes for granted.

    Args:
        given: By name, a tensor and its shape.

    Raises:
        ValueError: Names every tensor of another shape.
    """
    faults = [
        f"{name} is {tuple(tensor.shape)}: must be {shape}"
        for name, (tensor, shape) in given.items()
        if tensor.shape != shape
    ]
    if faults:
        raise ValueError("; ".join(faults))


def check_dense(matrix: Tensor, name: str) -> None:
    """Check that a kernel which knows only the stride of rows can read a matrix.

    Raises:
        ValueError: The elements of its rows lie apart.
    """
    if matrix.shape[1] > 1 and matrix.stride(1) != 1:
        raise ValueError(f"{name} has strides {matrix.stride()}: rows may lie apart, but must be dense")

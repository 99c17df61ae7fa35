"""Compile what serving will hit before it does: a first launch would otherwise wait seconds for the compiler."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import torch
import triton

from epd_kernels.architecture import current

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epd_kernels.launching import Launch
    from epd_kernels.sizes import Sizes

OPERATIONS: Final = (
    "tail_layout",
    "window_slots",
    "row_gather",
    "formats",
    "compressor",
    "attention",
    "index_scores",
    "candidate_blocks",
    "top_entries",
)
"""The packages that have kernels."""

_log = logging.getLogger(__name__)


class VastTensor:
    """Stands for a tensor in a storage of more than 2 GiB, for compiling alone.

    Triton's AMD backend gives 32-bit offsets to what lies within 2 GiB, so a pool of the served size is another kernel.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self._tensor = tensor

    def data_ptr(self) -> int:
        """Of the tensor that this stands on; its alignment counts."""
        return self._tensor.data_ptr()

    def ptr_range(self) -> int:
        """Bytes that may be addressed: what the backend asks for."""
        return 2**40


def launches(sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Launch]]:
    """Every launch that serving at these sizes can hit on the current architecture: operation/variant and launch."""
    for operation in OPERATIONS:
        yield from launches_of(operation, sizes, device)


def launches_of(operation: str, sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Launch]]:
    """Those of one operation."""
    for variant, launch in import_module(f"epd_kernels.{operation}.launch").warm(sizes, device):
        yield f"{operation}/{variant}", launch


def vast(launch: Launch) -> Launch:
    """The same launch with its pools (byte matrices) beyond 2 GiB."""
    return replace(launch, arguments=tuple(_vast(argument) for argument in launch.arguments))


def _vast(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor) and argument.dtype == torch.uint8 and argument.dim() == 2:
        return VastTensor(argument)
    return argument


def warmup(sizes: Sizes, device: torch.device) -> tuple[str, ...]:
    """Compile every launch that serving at these sizes can hit, into Triton's cache on disk and this process.

    Args:
        sizes: Of the model and its caches.
        device: Where the operations will run; the current device of its kind.

    Returns:
        The names of what was compiled; none in the interpreter, which compiles nothing.

    Raises:
        UnknownArchitecture: There is no GPU that kernels could be compiled for.
    """
    if triton.knobs.runtime.interpret:
        _log.info("kernels: Triton interprets, so there is nothing to compile")
        return ()
    started = time.monotonic()
    # On AMD both kinds: a short pool lies within 2 GiB, a served one does not.
    both = current().value.startswith("gfx")
    compiled = []
    for name, launch in launches(sizes, device):
        begun = time.monotonic()
        launch.compile()
        if both:
            vast(launch).compile()
        compiled.append(name)
        _log.info("kernels: compiled %s in %.1f s", name, time.monotonic() - begun)
    _log.info("kernels: %d compiled in %.1f s", len(compiled), time.monotonic() - started)
    return tuple(compiled)

"""How long a call takes on a GPU whose caches hold nothing of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import torch

from bench.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

FLUSH: Final = 1 << 30
"""Bytes overwritten before every call: more than any cache holds, and long enough for the host to be ahead."""
WARM_UPS: Final = 3


class Clock(Protocol):
    """Something that times one call."""

    def seconds(self, call: Callable[[], object]) -> float:
        """Of one call."""
        ...


@dataclass(frozen=True)
class EventClock:
    """CUDA or HIP events around a call, behind a write over `buffer`.

    The write runs while the host prepares the call, so launch costs of the host are not timed unless the call waits
    for the GPU itself, as some torch operations do.

    Attributes:
        buffer: On the device.
    """

    buffer: Tensor

    def seconds(self, call: Callable[[], object]) -> float:
        """Between the two events."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.buffer.zero_()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def clock(device: torch.device) -> EventClock:
    """A clock of a GPU."""
    return EventClock(torch.empty(FLUSH, dtype=torch.uint8, device=device))


def measure(call: Callable[[], object], timer: Clock, repeats: int) -> Spread:
    """Seconds of `repeats` calls, behind a few that warm up (and compile)."""
    for _ in range(WARM_UPS):
        call()
    return Spread.of([timer.seconds(call) for _ in range(repeats)])

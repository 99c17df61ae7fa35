"""Windows between the engine's rings and memory that may travel.

On a GPU nothing here waits for the device: rows come in from pinned memory ahead of the step that reads them, on its
own stream, and go out on a stream beside it, behind an event that only the publishing thread waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from epd_sglang.packed_rows import Layout, Rows
from epd_sglang.window_pool.extent import WINDOW

if TYPE_CHECKING:
    from torch import Tensor


class State(Protocol):
    """What is used of the pool of latents behind the rings."""

    @property
    def kv_buffer(self) -> list[Tensor]:
        """Pages of each layer."""

    @property
    def kv_layout(self) -> Layout:
        """Of a page."""


class StepLayout(Protocol):
    """What is used of the engine's `WindowLayout`."""

    @property
    def write_loc(self) -> Tensor:
        """Slot of each of the step's rows in the step's buffer."""


class Ring(Protocol):
    """What is used of the engine's `RequestWindow`: the last rows of every running request, layer by layer.

    Source: SGLang 0.5.23, srt/mem_cache/dsv41_request_window.py:236.
    """

    @property
    def state(self) -> State:
        """The rings' rows."""

    @property
    def tags(self) -> Tensor:
        """Position that each row of a ring holds, by layer."""

    @property
    def page_size(self) -> int:
        """Rows of a page."""

    @property
    def layout(self) -> StepLayout | None:
        """Of the current step."""

    def row_loc(self, slots: Any, positions: Tensor) -> Tensor:
        """Where the rows of positions are in a request's ring."""

    def buffer(self, layer: int) -> Tensor:
        """All rows of the current step, behind the rows of the rings that they look back on."""


def adopt(ring: Ring, slot: int, end: int, data: bytes, layers: int) -> None:
    """Put a window into a request's ring as if its rows had run.

    The tags are the engine's own guard: a row without its tag fails the step instead of giving a wrong answer.

    Args:
        ring: Where.
        slot: The request's.
        end: Position behind the window.
        data: Rows of each layer from the first on, positions rising.
        layers: How many of them.
    """
    device = ring.tags.device
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(layers, WINDOW, -1)
    if device.type == "cuda":
        rows = rows.pin_memory().to(device, non_blocking=True)
    positions = torch.arange(end - WINDOW, end, device=device)
    slots = ring.row_loc(slot, positions)
    where = Rows.at(slots, ring.page_size, ring.state.kv_layout)
    for layer in range(layers):
        where.write(ring.state.kv_buffer[layer], rows[layer])
    ring.tags[:layers].index_copy_(1, slots, positions.to(ring.tags.dtype).expand(layers, -1).contiguous())


@dataclass(frozen=True)
class Departure:
    """Rows on their way out of the device.

    Attributes:
        host: [layers, rows, bytes of a row].
        ready: When they are there; none if they are now.
    """

    host: Tensor
    ready: Any = None

    def data(self) -> bytes:
        """The rows, waited for."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.host.numpy().tobytes()


class Capture:
    """Collects a window's rows layer by layer while their step runs.

    Args:
        first: Where the window's first row is among the rows of the step.
        layers: How many layers, from the first on.
    """

    def __init__(self, first: int, layers: int) -> None:
        self._first = first
        self._layers = layers
        self._where: Rows | None = None
        self._rows: Tensor | None = None

    def take(self, ring: Ring, layer: int) -> None:
        """Copy a layer's rows, right before the engine gives most of the step's rows up."""
        cache = ring.buffer(layer)
        if self._where is None or self._rows is None:
            assert ring.layout is not None
            slots = ring.layout.write_loc[self._first : self._first + WINDOW]
            layout = ring.state.kv_layout
            self._where = Rows.at(slots, ring.page_size, layout)
            shape = (self._layers, WINDOW, layout.bytes_per_token)
            self._rows = torch.empty(shape, dtype=torch.uint8, device=cache.device)
        self._rows[layer] = self._where.read(cache)

    def depart(self, stream: Any) -> Departure:
        """Send the rows off; every layer has been taken.

        Args:
            stream: Beside the step's on a GPU; none elsewhere.
        """
        assert self._rows is not None
        if stream is None:
            return Departure(self._rows)
        stream.wait_stream(torch.cuda.current_stream(self._rows.device))
        with torch.cuda.stream(stream):
            host = torch.empty(self._rows.shape, dtype=torch.uint8, pin_memory=True)
            host.copy_(self._rows, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(stream)
        # The allocator must not give the rows' memory away before the copy has read it.
        self._rows.record_stream(stream)
        return Departure(host, ready)

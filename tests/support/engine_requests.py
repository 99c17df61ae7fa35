"""Requests, batches and rings as the real engine's scheduler has them, as far as the pool of windows looks at them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch

from epd_sglang.packed_rows import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

PAGE: Final = 256


@dataclass(eq=False)
class EngineRequest:
    """One of the engine's `Req`."""

    origin_input_ids: array[int]
    output_ids: array[int] = field(default_factory=lambda: array("q"))
    extra_key: str | None = None
    cache_salt: str | None = None
    input_embeds: object = None
    positional_embed_overrides: object = None
    prefix_len: int = 0


def request(tokens: int, *, first: int = 0, salt: str | None = None) -> EngineRequest:
    """A request whose prompt counts up."""
    return EngineRequest(array("q", range(first, first + tokens)), cache_salt=salt)


@dataclass
class EngineBatch:
    """One of the engine's `ScheduleBatch`."""

    reqs: Sequence[EngineRequest]
    prefix_lens: Sequence[int]
    extend_lens: Sequence[int]
    encoder_swa_reset: Sequence[bool]
    req_pool_indices_cpu: Sequence[int]
    decoding_reqs: Sequence[EngineRequest] | None = None


def batch(*parts: tuple[EngineRequest, int, int, bool]) -> EngineBatch:
    """A step of requests, each with its prefix, its rows and whether it begins; their slots count up from 1."""
    requests, prefixes, rows, resets = zip(*parts, strict=True)
    return EngineBatch(requests, prefixes, rows, resets, range(1, len(parts) + 1))


@dataclass(frozen=True)
class V41:
    """The layout of windows, in either arrangement. Source: SGLang 0.5.23, kernels/ops/attention/dsv4/kv_layout.py."""

    is_interleaved: bool = False
    is_fp4: bool = False
    data_bytes: int = 512
    scale_bytes: int = 16
    bytes_per_token: int = 528

    def row_addressing(self, page_size: int) -> tuple[int, int, int]:
        """As the engine says it."""
        return (528, 512, 528) if self.is_interleaved else (512, page_size * 512, 16)


@dataclass
class _State:
    kv_buffer: list[Tensor]
    kv_layout: V41


@dataclass
class _Layout:
    write_loc: Tensor


class EngineRing:
    """One of the engine's `RequestWindow`: `slots` rings of a page each, and the rows of one step."""

    def __init__(self, layers: int, slots: int, rows: int, layout: V41, seed: int = 0) -> None:
        self.page_size = PAGE
        self.state = _State([self._pages(slots) for _ in range(layers)], layout)
        self.tags = torch.full((layers, (slots + 1) * PAGE), -1, dtype=torch.int64)
        self.layout = _Layout((PAGE + torch.arange(rows)).to(torch.int32))
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(0, 256, (layers, rows, 528), dtype=torch.uint8, generator=generator)
        self._workspace = self._pages(2 + rows // PAGE)

    def row_loc(self, slots: int, positions: Tensor) -> Tensor:
        """As the engine says it."""
        return slots * PAGE + positions % PAGE

    def buffer(self, layer: int) -> Tensor:
        """The step's rows behind a page of rows from the rings; of one layer at a time, as in the engine."""
        where = Rows.at(self.layout.write_loc, PAGE, self.state.kv_layout)
        where.write(self._workspace, self.rows[layer])
        return self._workspace

    def held(self, layer: int, slot: int, positions: Tensor) -> Tensor:
        """Rows of a ring."""
        where = Rows.at(self.row_loc(slot, positions), PAGE, self.state.kv_layout)
        return where.read(self.state.kv_buffer[layer])

    @staticmethod
    def _pages(count: int) -> Tensor:
        return torch.zeros(count + 1, PAGE * 528 + 64, dtype=torch.uint8)

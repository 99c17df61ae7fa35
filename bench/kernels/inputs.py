"""Tensors for every operation at a case, as serving would hand them over; their values are arbitrary but valid."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import torch

from epd_kernels.formats.reference import INDEX, MAIN, WINDOW
from epd_kernels.paged import Paged
from epd_kernels.tail_layout.reference import Layout, tail_layout
from epd_kernels.window_slots.reference import Slots, entry_slots, window_slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from bench.kernels.case import Case
    from epd_kernels.dispatch import Operations
    from epd_kernels.formats.reference import Codec
    from epd_kernels.sizes import Sizes

EPS: Final = 1e-20


@dataclass(frozen=True)
class Call:
    """One operation with its tensors.

    Attributes:
        run: Calls it, of the implementation given; its results.
        tensors: Those of the registry's streams that are read or written whole, by the streams' names.
    """

    run: Callable[[Operations], tuple[Tensor, ...]]
    tensors: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Inputs:
    """What the operations of one case share.

    Attributes:
        case: The step.
        sizes: The model's.
        device: Where the tensors lie.
    """

    case: Case
    sizes: Sizes
    device: torch.device

    @cached_property
    def random(self) -> torch.Generator:
        """Seeded, so that two runs time the same values."""
        return torch.Generator(self.device).manual_seed(0)

    @cached_property
    def lengths(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Extends, lengths, bases and flags, [B] each."""
        requests = len(self.case.extends)
        return (
            self.integers(self.case.extends),
            self.integers(self.case.lengths),
            torch.zeros(requests, dtype=torch.int32, device=self.device),
            torch.full((requests,), self.case.whole, device=self.device),
        )

    @cached_property
    def layout(self) -> Layout:
        """The rows that run."""
        rows = self.case.rows(self.sizes.window)
        return tail_layout(*self.lengths, window=self.sizes.window, policy=self.case.policy, capacity=rows)

    @cached_property
    def seen(self) -> Tensor:
        """[R] int32, entries that each row sees."""
        return ((self.layout.positions + 1) // self.case.ratio).int()

    @cached_property
    def table(self) -> Tensor:
        """[B, P] int32, pages of each request, in an order like a long-running server's."""
        requests, pages = len(self.case.lengths), -(-max(self.case.lengths) // self.sizes.page_size)
        order = torch.randperm(requests * pages, generator=self.random, device=self.device)
        return order.view(requests, pages).int()

    @cached_property
    def window(self) -> Paged:
        """Window rows."""
        return self.pool(WINDOW, self.sizes.head_dim, self.sizes.page_size)

    @cached_property
    def entries(self) -> Paged:
        """Global entries."""
        return self.pool(MAIN, self.sizes.head_dim, self.sizes.page_size // self.case.ratio)

    @cached_property
    def keys(self) -> Paged:
        """Index keys."""
        return self.pool(INDEX, self.sizes.index_dim, self.sizes.page_size // self.case.ratio)

    @cached_property
    def slots(self) -> Slots:
        """Window slots of each row."""
        layout, sizes = self.layout, self.sizes
        return window_slots(
            layout.positions,
            layout.floors,
            layout.requests,
            self.table,
            page_size=sizes.page_size,
            window=sizes.window,
        )

    @cached_property
    def chosen(self) -> Tensor:
        """[R, topk] int32, entries in rising order: spread evenly over what a row sees; -1 behind the last."""
        columns = torch.arange(self.sizes.topk, device=self.device)
        seen = self.seen[:, None].long()
        spread = torch.where(seen > self.sizes.topk, columns * seen // self.sizes.topk, columns)
        return spread.masked_fill(columns >= seen, -1).int()

    @cached_property
    def selected(self) -> Tensor:
        """Their slots."""
        return entry_slots(self.chosen, self.layout.requests, self.table, page_size=self.entries.page_size)

    def integers(self, values: tuple[int, ...]) -> Tensor:
        """[n] int32."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Standard normal values."""
        return torch.randn(*shape, generator=self.random, device=self.device, dtype=torch.float32).to(dtype)

    def bytes(self, *shape: int, low: int = 0, high: int = 256) -> Tensor:
        """Random bytes from `low` to `high` - 1."""
        return torch.randint(low, high, shape, generator=self.random, device=self.device, dtype=torch.uint8)

    def rows(self, codec: Codec, dim: int, count: int) -> Tensor:
        """[count, width] uint8, rows of values around 1 without NaN."""
        size = codec.code_bytes(dim)
        codes = self.bytes(count, size)
        if codec == WINDOW:  # 0x7F and 0xFF are E4M3's NaN
            codes -= ((codes & 0x7F) == 0x7F).to(torch.uint8)
        # E4M3 scales from 0.25 on, powers of two from 2^-6 on.
        low, high = (0x28, 0x30) if codec == MAIN else (121, 125)
        return torch.cat((codes, self.bytes(count, codec.width(dim) - size, low=low, high=high)), -1)

    def pool(self, codec: Codec, dim: int, page_size: int) -> Paged:
        """A full pool, planar as SGLang 0.5.23 lays it out (V41_FP4, V41)."""
        pages = self.table.numel()
        rows = self.rows(codec, dim, pages * page_size).view(pages, page_size, -1)
        size = codec.code_bytes(dim)
        data = torch.cat((rows[..., :size].flatten(1), rows[..., size:].flatten(1)), -1)
        return Paged(data, page_size, dim, codec, planar=True)

"""Rows of bytes in the engine's paged caches, on any device.

A page holds the codes of all its rows, then their scales, or each row's scales behind its codes. Source: SGLang 0.5.23,
kernels/ops/attention/dsv4/kv_layout.py:115.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Layout(Protocol):
    """What is used of the engine's `KVLayout`."""

    @property
    def is_fp4(self) -> bool:
        """Whether codes have four bits."""

    @property
    def is_interleaved(self) -> bool:
        """Whether a row's scales follow its codes at once."""

    @property
    def data_bytes(self) -> int:
        """Codes of a row."""

    @property
    def scale_bytes(self) -> int:
        """Scales of a row."""

    @property
    def bytes_per_token(self) -> int:
        """Both."""

    def row_addressing(self, page_size: int) -> tuple[int, int, int]:
        """Stride of the codes, start and stride of the scales, in bytes inside a page."""


@dataclass(frozen=True)
class Rows:
    """Where some rows are in every cache of one layout and page size.

    Attributes:
        page: Page of each row [n, 1].
        offset: Every byte of a row inside its page, codes first [n, bytes of a row].
    """

    page: Tensor
    offset: Tensor

    @classmethod
    def at(cls, slots: Tensor, page_size: int, layout: Layout) -> Self:
        """The rows at slots [n], on the device of the slots and without waiting for it."""
        slots = slots.long()
        stride, start, scale_stride = layout.row_addressing(page_size)
        row = (slots % page_size)[:, None]
        codes = row * stride + torch.arange(layout.data_bytes, device=slots.device)
        scales = start + row * scale_stride + torch.arange(layout.scale_bytes, device=slots.device)
        return cls((slots // page_size)[:, None], torch.cat((codes, scales), 1))

    def read(self, cache: Tensor) -> Tensor:
        """Their bytes [n, bytes of a row] in a cache [pages, bytes of a page]."""
        return cache.view(torch.uint8)[self.page, self.offset]

    def write(self, cache: Tensor, rows: Tensor) -> None:
        """Put bytes [n, bytes of a row] into a cache [pages, bytes of a page]."""
        cache.view(torch.uint8)[self.page, self.offset] = rows


def copy(
    source: Tensor, target: Tensor, source_slots: Tensor, target_slots: Tensor, *, page_size: int, layout: Layout
) -> None:
    """Copy rows between caches of one layout, byte for byte.

    Args:
        source: [pages, bytes of a page].
        target: The same.
        source_slots: [n].
        target_slots: [n].
        page_size: Rows in a page of both.
        layout: Of both.
    """
    Rows.at(target_slots, page_size, layout).write(target, Rows.at(source_slots, page_size, layout).read(source))

"""Rows of bytes in the engine's paged caches.

A page holds the codes of all its rows, then their scales (`KVLayout`, block-split). Source: SGLang 0.5.23,
kernels/ops/attention/dsv4/kv_layout.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from epd_kernels.formats.reference import INDEX, MAIN, WINDOW, Codec, pack
from epd_kernels.paged import Paged

if TYPE_CHECKING:
    from torch import Tensor

LATENT = 512
INDEX_DIM = 128


class Layout(Protocol):
    """What is used of the engine's `KVLayout`."""

    @property
    def is_fp4(self) -> bool:
        """Whether rows are E2M1; else E4M3."""

    @property
    def is_interleaved(self) -> bool:
        """Whether a row's scales stand behind its codes; else all scales of a page stand behind all codes."""

    @property
    def data_bytes(self) -> int:
        """Of a row's codes."""

    @property
    def scale_bytes(self) -> int:
        """Of a row's scales."""

    def row_addressing(self, page_size: int) -> tuple[int, int, int]:
        """Stride of the codes, start and stride of the scales, in bytes inside a page."""


def latents(cache: Tensor, page_size: int, layout: Layout) -> Paged:
    """A cache of latents [pages, bytes of a page] as a pool."""
    codec = MAIN if layout.is_fp4 else WINDOW
    return Paged(cache.view(torch.uint8), page_size, LATENT, codec, planar=not layout.is_interleaved)


def index_keys(cache: Tensor, page_size: int) -> Paged:
    """A cache of index keys [pages, bytes of a page] as a pool."""
    return Paged(cache, page_size, INDEX_DIM, INDEX, planar=True)


def read_view(cache: Tensor) -> Paged:
    """A pool from the view [pages, rows, 1, bytes of a row] that attention is given; its pages may be padded.

    Raises:
        KeyError: Rows are neither FP8 (528 bytes) nor FP4 (288 bytes) ones.
    """
    pages, page_size, _, width = cache.shape
    codecs: dict[int, Codec] = {codec.width(LATENT): codec for codec in (WINDOW, MAIN)}
    data = cache.as_strided((pages, page_size * width), (cache.stride(0), 1)).view(torch.uint8)
    return Paged(data, page_size, LATENT, codecs[width], planar=True)


def store(values: Tensor, pool: Paged, slots: Tensor) -> None:
    """Encode rows [n, dim] at slots [n]; of several rows for one slot the last one stays.

    The engine sends all padding to one slot, which nobody reads; `pack` wants every slot once.
    """
    distinct, group = torch.unique(slots.long(), return_inverse=True)
    last = torch.zeros(len(distinct), dtype=torch.long).scatter_reduce_(
        0, group, torch.arange(len(slots)), "amax", include_self=False
    )
    pack(values[last].float(), pool, distinct)


def byte_index(slots: Tensor, page_size: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """Page [n, 1] and byte in the page [n, bytes of a row] of every byte of rows, codes first."""
    code_stride, scale_start, scale_stride = layout.row_addressing(page_size)
    page, row = slots.long() // page_size, slots.long() % page_size
    codes = row[:, None] * code_stride + torch.arange(layout.data_bytes)
    scales = scale_start + row[:, None] * scale_stride + torch.arange(layout.scale_bytes)
    return page[:, None], torch.cat((codes, scales), 1)


def copy(source: Tensor, target: Tensor, source_slots: Tensor, target_slots: Tensor, **how: Any) -> None:
    """Copy rows between caches of one layout, byte for byte.

    Args:
        source: [pages, bytes of a page].
        target: The same.
        source_slots: [n].
        target_slots: [n].
        how: `page_size` and `layout` of both.
    """
    rows = source.view(torch.uint8)[byte_index(source_slots, **how)]
    target.view(torch.uint8)[byte_index(target_slots, **how)] = rows

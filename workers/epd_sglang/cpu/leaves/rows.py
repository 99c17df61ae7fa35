"""The engine's paged caches as pools of the kernels' library, which encode and decode rows.

Pages are block-split: the codes of all rows, then their scales. Source: SGLang 0.5.23,
kernels/ops/attention/dsv4/kv_layout.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from epd_kernels.formats.reference import INDEX, MAIN, WINDOW, Codec, pack
from epd_kernels.paged import Paged

if TYPE_CHECKING:
    from torch import Tensor

    from epd_sglang.packed_rows import Layout

LATENT = 512
INDEX_DIM = 128


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

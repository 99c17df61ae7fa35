"""Norm, rotation and store of rows into the caches, and the moves of request windows.

Sources: SGLang 0.5.23, kernels/ops/attention/dsv4/{attn,norm_rope}.py, kernels/ops/kvcache/
{dsv4_fp4_index_k_cache,dsv4_request_window_copy}.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from epd_sglang import packed_rows
from epd_sglang.cpu.leaves import rows

if TYPE_CHECKING:
    from torch import Tensor


def rotated(x: Tensor, turns: Tensor, *, inverse: bool = False) -> Tensor:
    """Turn the last values of rows, pair by pair, in float32.

    Args:
        x: [n, ..., d].
        turns: Complex [n, r]; the last 2 r values of a row are turned.
        inverse: Turn back.

    Returns:
        Like x.
    """
    turns = turns.conj() if inverse else turns
    size = 2 * turns.shape[-1]
    pairs = torch.view_as_complex(x[..., -size:].float().unflatten(-1, (-1, 2)).contiguous())
    turned = torch.view_as_real(pairs * turns.view(len(x), *(1,) * (x.dim() - 2), -1)).flatten(-2)
    return torch.cat((x[..., :-size], turned.to(x.dtype)), -1)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _complex(turns: Tensor) -> Tensor:
    return turns if turns.is_complex() else torch.view_as_complex(turns.unflatten(-1, (-1, 2)).contiguous())


def fused_store_cache(
    parse: Any, values: Tensor, cache: Tensor, indices: Tensor, *, page_size: int, layout: Any, freqs_cis: Tensor | None
) -> None:
    """Store latents [n, 512], rotated here if `freqs_cis` is given.

    Args:
        parse: The engine's reading of a layout's name.
        values: Normed; rotated unless `freqs_cis` is given.
        cache: [pages, bytes of a page].
        indices: [n].
        page_size: Rows in a page.
        layout: Of the cache.
        freqs_cis: Complex [n, 32] or float32 [n, 64].
    """
    x = values.float() if freqs_cis is None else rotated(values.float(), _complex(freqs_cis))
    rows.store(x, rows.latents(cache, page_size, parse(layout)), indices)


def norm_rope_store(
    parse: Any,
    kv: Tensor,
    weight: Tensor,
    eps: float,
    freqs_cis: Tensor,
    positions: Tensor,
    out_loc: Tensor,
    cache: Tensor,
    page_size: int,
    layout: Any,
) -> None:
    """Norm, rotate and store latents [n, 512]."""
    x = rotated(_normed(kv, weight, eps), freqs_cis[positions.long()])
    rows.store(x, rows.latents(cache, page_size, parse(layout)), out_loc)


def rope_inplace(q: Tensor, k: Tensor | None, freqs_cis: Tensor, positions: Tensor, inverse: bool) -> None:
    """Rotate queries and keys [n, heads, rope dim] where they are."""
    turns = freqs_cis[positions.long()]
    for x in (q, k):
        if x is not None:
            x.copy_(rotated(x, turns, inverse=inverse))


def norm_rope_inplace(kv: Tensor, weight: Tensor, eps: float, freqs_cis: Tensor, positions: Tensor) -> None:
    """Norm and rotate rows [n, dim] where they are."""
    kv.copy_(rotated(_normed(kv, weight, eps), freqs_cis[positions.long()]))


def store_index_keys(values: Tensor, cache: Tensor, loc: Tensor, *, page_size: int) -> None:
    """Store index keys [..., 128] as FP4."""
    rows.store(values.reshape(-1, rows.INDEX_DIM), rows.index_keys(cache, page_size), loc)


def copy_packed_rows(
    src: Tensor, dst: Tensor, src_loc: Tensor, dst_loc: Tensor, *, page_size: int, layout: packed_rows.Layout
) -> None:
    """Copy packed rows between caches of one layout."""
    packed_rows.copy(src, dst, src_loc, dst_loc, page_size=page_size, layout=layout)


def commit_packed_rows(
    src: Tensor, dst: Tensor, tags: Tensor, window: Any, *, page_size: int, capacity: int, layout: packed_rows.Layout
) -> None:
    """Copy the rows of a step that a request's ring keeps, and write their positions into `tags`."""
    kept = window.commit_mask.bool()
    positions = window.pos[kept].long()
    target = window.req[kept].long() * capacity + positions % capacity
    packed_rows.copy(src, dst, window.write_loc[kept], target, page_size=page_size, layout=layout)
    tags[target] = positions.to(tags.dtype)

"""Pooling of pairs of tokens in torch.

Tokens 2j and 2j + 1 of a sequence give entry j: channel by channel their contents are weighted by the softmax of their
two gates, and the sum is normalised (RMSNorm). No overlap with neighbours, no positional bias. A token whose partner is
still to come is kept, so that any division of a sequence into chunks gives the same bits.

Source: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from epd_kernels.compressor.pairs import Pairs

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK: Final = 1024  # entries at once: bounds the gathered copies


def pool_pairs(  # noqa: PLR0917 - a pure function of tensors in the kernels' customary order
    projected: Tensor,
    starts: Tensor,
    firsts: Tensor,
    pending: Tensor,
    waiting: Tensor,
    norm_weight: Tensor,
    eps: float,
    *,
    capacity: int,
) -> Pairs:
    """Entries of all pairs that a ragged step completes.

    Formula: w = softmax((g_0, g_1)); x = w_0 c_0 + w_1 c_1; latent = x (mean(x²) + eps)^(-1/2) norm_weight.

    Args:
        projected: [S, 2, dim], content c and gate g of each token; of a wider type than float32 the values must still
            be float32's, since that is how an unpaired token is kept.
        starts: [B + 1] int32, where each request's rows begin; the last one is S.
        firsts: [B] int32, position of each request's first row; odd exactly where a token waits.
        pending: [B, 2, dim] float32, content and gate of the token before the first row; read where one waits.
        waiting: [B] bool, whether it waits for its partner.
        norm_weight: [dim].
        eps: Added to the mean square.
        capacity: Rows of the result, at least the pairs of this step.
    """
    rows = starts[1:] - starts[:-1]
    tokens = rows + waiting
    pairs = tokens // 2
    ends = pairs.cumsum(0)
    order = torch.arange(capacity, device=projected.device)
    owners = torch.searchsorted(ends, order, right=True)
    real = owners < len(rows)
    request = owners[real]
    pair = order[: len(request)] - (ends - pairs)[request]
    entries, requests = torch.full((2, capacity), -1, dtype=torch.int32, device=projected.device)
    entries[: len(request)] = ((firsts - waiting.int())[request] // 2 + pair).int()
    requests[: len(request)] = request.int()
    second = starts[request] + 2 * pair + 1 - waiting[request].int()
    kept = (waiting[request] & (pair == 0)).nonzero().squeeze(1)
    latents = projected.new_zeros(capacity, projected.shape[-1])
    for block in range(0, len(request), _BLOCK):
        ours = slice(block, block + _BLOCK)
        one, other = projected[(second[ours] - 1).clamp(min=0)], projected[second[ours]]
        inside = kept[(kept >= block) & (kept < block + _BLOCK)]
        one[inside - block] = pending[request[inside]].to(one.dtype)
        latents[: len(request)][ours] = _normalised(_mixed(one, other), norm_weight, eps)
    return Pairs(latents, entries, requests, *_left(projected, starts, pending, tokens, rows))


def _mixed(one: Tensor, other: Tensor) -> Tensor:
    """[n, dim] of tokens [n, 2, dim] and their partners. The softmax of two: the larger gate's exponential is 1."""
    smaller = (one[:, 1] - other[:, 1]).abs_().neg_().exp_()
    first = one[:, 1] >= other[:, 1]
    total = smaller + 1
    larger, smaller = 1 / total, smaller / total
    return one[:, 0] * torch.where(first, larger, smaller) + other[:, 0] * torch.where(first, smaller, larger)


def _normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _left(projected: Tensor, starts: Tensor, pending: Tensor, tokens: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The unpaired last tokens [B, 2, dim] and where there is one [B]."""
    waiting = tokens % 2 == 1
    left = torch.zeros_like(pending)
    fresh, old = waiting & (rows > 0), waiting & (rows == 0)
    left[fresh] = projected[starts[1:][fresh] - 1].to(left.dtype)
    left[old] = pending[old]
    return left, waiting

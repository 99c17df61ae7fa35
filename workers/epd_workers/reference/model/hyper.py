"""Single-pass manifold-constrained hyper-connections: four residual streams and how a sublayer reads and writes them.

The tricky idea: `pre`, `post` and the mixing matrix come from one read of the streams at the site, but the sublayer's
input is collapsed with the `pre` of the *previous* site, so it need not wait for this site's own result. What crosses
a layer boundary is therefore the streams and one `pre`.

Source: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from epd_workers.reference.model.norm import inverse_rms

if TYPE_CHECKING:
    from epd_workers.reference.model.config import TextConfig

_LEARNT_ROUNDS = 3


class Mix(NamedTuple):
    """Weights that one site computes from the streams.

    Attributes:
        pre: [..., k].
        post: [..., k].
        comb: [..., j, k], from stream j to stream k.
    """

    pre: Tensor
    post: Tensor
    comb: Tensor


class HyperConnection(nn.Module):
    """One site (attention or FFN of a layer).

    With z = concat(R) and u = (fn z) (mean(z²) + eps)^(-1/2): pre = sigmoid(scale₀ u₀ + base₀) + hc_eps; post =
    2 sigmoid(scale₁ u₁ + base₁); comb = softmax over k of scale₂ u₂ + base₂, plus hc_eps, then Sinkhorn: columns once,
    and rows and columns in turn until `hc_sinkhorn_iters` rounds are done, every divisor plus hc_eps.
    """

    def __init__(self, text: TextConfig) -> None:
        super().__init__()
        k = text.hc_mult
        self.k, self.eps, self.norm_eps, self.rounds = k, text.hc_eps, text.rms_norm_eps, text.hc_sinkhorn_iters
        self.fn = nn.Parameter(torch.zeros((2 + k) * k, k * text.hidden_size))
        self.base = nn.Parameter(torch.zeros((2 + k) * k))
        self.scale = nn.Parameter(torch.ones(3))

    @override
    def forward(self, streams: Tensor) -> Mix:
        """Streams [..., k, d] to their mix."""
        k, z = self.k, streams.flatten(-2)
        u = nn.functional.linear(z, self.fn) * inverse_rms(z, self.norm_eps)
        pre = torch.sigmoid(self.scale[0] * u[..., :k] + self.base[:k]) + self.eps
        post = 2 * torch.sigmoid(self.scale[1] * u[..., k : 2 * k] + self.base[k : 2 * k])
        logits = self.scale[2] * u[..., 2 * k :] + self.base[2 * k :]
        # The small dimensions first: sums over them then run over long contiguous rows.
        rows = logits.reshape(-1, k * k).t().reshape(k, k, -1)
        comb = self._sinkhorn(rows.softmax(1) + self.eps)
        return Mix(pre, post, comb.reshape(k * k, -1).t().reshape(*logits.shape[:-1], k, k))

    def _sinkhorn(self, comb: Tensor) -> Tensor:
        rounds = max(self.rounds - _LEARNT_ROUNDS, 0) if torch.is_grad_enabled() else self.rounds
        with torch.no_grad():
            scaled = comb.detach()
            for number in range(rounds):
                scaled = self._round(scaled, first=number == 0)
        if rounds == self.rounds:
            return scaled
        # All rounds so far are one scaling of rows and columns; the gradient goes through the last rounds alone.
        comb = comb * (scaled / comb.detach())
        for number in range(rounds, self.rounds):
            comb = self._round(comb, first=number == 0)
        return comb

    def _round(self, comb: Tensor, *, first: bool) -> Tensor:
        if not first:
            comb = comb / (comb.sum(1, keepdim=True) + self.eps)
        return comb / (comb.sum(0, keepdim=True) + self.eps)


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """Σ_k pre[k] R[k]: [..., k, d] and [..., k] to [..., d]."""
    return _weighted(streams, pre)


def spread(streams: Tensor, y: Tensor, mix: Mix) -> Tensor:
    """R'[k] = post[k] y + Σ_j comb[j, k] R[j]: streams [..., k, d] and the sublayer's output [..., d]."""
    columns = zip(mix.post.unbind(-1), mix.comb.unbind(-1), strict=True)
    return torch.stack([_weighted(streams, comb, post[..., None] * y) for post, comb in columns], -2)


def _weighted(streams: Tensor, weights: Tensor, start: Tensor | None = None) -> Tensor:
    """Start + Σ_j weights[j] R[j], stream by stream: several times faster than a product of tiny matrices."""
    first, *rest = zip(streams.unbind(-2), weights.unbind(-1), strict=True)
    total = first[0] * first[1][..., None] if start is None else torch.addcmul(start, first[0], first[1][..., None])
    for stream, weight in rest:
        total = torch.addcmul(total, stream, weight[..., None])
    return total


def first_pre(shape: torch.Size, k: int, like: Tensor) -> Tensor:
    """The `pre` before the first site of a stack: one-hot on stream 0, [*shape, k]."""
    pre = like.new_zeros(*shape, k)
    pre[..., 0] = 1
    return pre

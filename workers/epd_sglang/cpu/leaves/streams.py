"""Hyper-connections and the clamped activation.

Sources: SGLang 0.5.23, kernels/ops/layernorm/mhc.py and kernels/ops/activation/silu_and_mul_clamp.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


def hc_split_sinkhorn(
    mixes: Tensor, hc_scale: Tensor, hc_base: Tensor, hc_mult: int = 4, sinkhorn_iters: int = 20, eps: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of reading, writing and mixing the streams.

    Args:
        mixes: [..., (2 + k) k].
        hc_scale: Of the three parts [3].
        hc_base: [(2 + k) k].
        hc_mult: Streams k.
        sinkhorn_iters: Rounds of scaling columns, and rows between them.
        eps: Added to every weight and divisor.

    Returns:
        [..., k], [..., k] and [..., k, k].
    """
    parts = mixes.split((hc_mult, hc_mult, hc_mult * hc_mult), -1)
    bases = hc_base.split((hc_mult, hc_mult, hc_mult * hc_mult))
    read, write, mix = (part * scale + base for part, scale, base in zip(parts, hc_scale, bases, strict=True))
    comb = mix.unflatten(-1, (hc_mult, hc_mult)).softmax(-1) + eps
    for number in range(sinkhorn_iters):
        if number:
            comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return torch.sigmoid(read) + eps, 2 * torch.sigmoid(write), comb


def mhc_combine(x_flat: Tensor, pre: Tensor, hc: int, out_dtype: torch.dtype) -> Tensor:
    """Σ_k pre[m, k] x[m, k, :], of streams side by side [m, k d]: [m, d]."""
    streams = x_flat.unflatten(1, (hc, -1)).float()
    combined: Tensor = (streams * pre.float()[..., None]).sum(1).to(out_dtype)
    return combined


def silu_and_mul_clamp(gate_up: Tensor, output: Tensor, swiglu_limit: float) -> None:
    """SwiGLU of [n, 2 d] into [n, d]; the gate is clamped from above, the other half on both sides."""
    gate, up = gate_up.float().chunk(2, -1)
    limit = swiglu_limit
    output.copy_(functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit))

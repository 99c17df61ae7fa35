"""The pieces that target and draft layers share, each as its formula says: norms, mHC, RoPE, attention, MoE.

Source: DeepSeek-V4.1-Flash inference/model.py, revision dba1be0a. Everything is float64 and returns new tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.reference.model.oracle_formats import KvMode, round_window

Weights = dict[str, Tensor]


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def frequencies(text: dict[str, Any], ratio: int) -> list[float]:
    """The angular frequencies of a layer: plain without compression, YaRN with it."""
    dims = text["qk_rope_head_dim"]
    base = text["compress_rope_theta"] if ratio else text["rope_theta"]
    plain = [base ** (-2 * i / dims) for i in range(dims // 2)]
    if not ratio:
        return plain
    yarn = text["rope_scaling"]

    def turns(r: float) -> float:
        return float(
            dims * math.log(yarn["original_max_position_embeddings"] / (2 * math.pi * r)) / (2 * math.log(base))
        )

    low, high = math.floor(turns(yarn["beta_fast"])), math.ceil(turns(yarn["beta_slow"]))
    ramp = [min(1.0, max(0.0, (i - low) / (high - low))) for i in range(dims // 2)]
    return [f * (1 - t) + f / yarn["factor"] * t for f, t in zip(plain, ramp, strict=True)]


def rotate(x: Tensor, positions: list[int], freqs: list[float], *, inverse: bool = False) -> Tensor:
    """Turns the last 2 len(freqs) values of x [rows, ..., D] by position * frequency, pairs (2i, 2i + 1)."""
    angles = torch.tensor([[p * f for f in freqs] for p in positions], dtype=torch.float64)
    angles = (-angles if inverse else angles).reshape(len(positions), *[1] * (x.dim() - 2), len(freqs))
    out = x.clone()
    start = x.shape[-1] - 2 * len(freqs)
    even, odd = x[..., start::2], x[..., start + 1 :: 2]
    out[..., start::2] = even * torch.cos(angles) - odd * torch.sin(angles)
    out[..., start + 1 :: 2] = even * torch.sin(angles) + odd * torch.cos(angles)
    return out


def sinkhorn(c: Tensor, iters: int, eps: float) -> Tensor:
    """Makes C[.., j, k] near doubly stochastic: softmax over k first, then alternate sums over j and k."""
    c = torch.softmax(c, dim=-1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


@dataclass(frozen=True)
class Mix:
    """One site's mixing of n streams: pre [rows, n], post [rows, n], carry C [rows, j, k]."""

    pre: Tensor
    post: Tensor
    carry: Tensor


def mix(streams: Tensor, text: dict[str, Any], w: Weights, site: str) -> Mix:
    """Reads pre, post and C off the streams [rows, n, d] at a site named like `layers.3.hc_attn`."""
    n, eps = text["hc_mult"], text["hc_eps"]
    z = streams.reshape(streams.shape[0], -1)
    u = z @ w[f"{site}_fn"].T / torch.sqrt((z * z).mean(-1, keepdim=True) + text["rms_norm_eps"])
    base, scale = w[f"{site}_base"], w[f"{site}_scale"]
    pre = torch.sigmoid(scale[0] * u[:, :n] + base[:n]) + eps
    post = 2 * torch.sigmoid(scale[1] * u[:, n : 2 * n] + base[n : 2 * n])
    carry = (scale[2] * u[:, 2 * n :] + base[2 * n :]).reshape(-1, n, n)
    return Mix(pre, post, sinkhorn(carry, text["hc_sinkhorn_iters"], eps))


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """sum_k pre[k] R[k]."""
    return (pre[:, :, None] * streams).sum(1)


def expand(streams: Tensor, y: Tensor, mixing: Mix) -> Tensor:
    """R'[k] = post[k] y + sum_j C[j, k] R[j]."""
    out = []
    for k in range(streams.shape[1]):
        carried = sum(mixing.carry[:, j, k, None] * streams[:, j] for j in range(streams.shape[1]))
        out.append(mixing.post[:, k, None] * y + carried)
    return torch.stack(out, dim=1)


def queries(
    x: Tensor, positions: list[int], text: dict[str, Any], w: Weights, name: str, freqs: list[float]
) -> tuple[Tensor, Tensor]:
    """The low-rank latent qr [rows, q_lora] and the rotated queries [rows, heads, head_dim]."""
    qr = rms(x @ w[f"{name}.wq_a.weight"].T, w[f"{name}.q_norm.weight"], text["rms_norm_eps"])
    q = (qr @ w[f"{name}.wq_b.weight"].T).reshape(len(positions), text["num_attention_heads"], text["head_dim"])
    return qr, rotate(q, positions, freqs)


def window_rows(
    x: Tensor, positions: list[int], text: dict[str, Any], w: Weights, name: str, freqs: list[float], kv: KvMode
) -> Tensor:
    """The window entries [rows, head_dim] as they come back from the cache."""
    latent = rms(x @ w[f"{name}.wkv.weight"].T, w[f"{name}.kv_norm.weight"], text["rms_norm_eps"])
    return round_window(rotate(latent, positions, freqs), kv)


def attend(q: Tensor, keys: Tensor, mask: Tensor, sink: Tensor) -> Tensor:
    """Softmax attention with one sink a head in the denominator; keys are the values.

    Args:
        q: [rows, heads, D].
        keys: [keys, D].
        mask: [rows, keys], what each row sees.
        sink: [heads].

    Returns:
        [rows, heads, D].
    """
    out = []
    for h in range(q.shape[1]):
        scores = (q[:, h] @ keys.T / math.sqrt(q.shape[-1])).masked_fill(~mask, -torch.inf)
        top = torch.maximum(scores.amax(-1), sink[h])
        weights = torch.exp(scores - top[:, None])
        out.append(weights @ keys / (weights.sum(-1) + torch.exp(sink[h] - top))[:, None])
    return torch.stack(out, dim=1)


def output(
    heads: Tensor, positions: list[int], text: dict[str, Any], w: Weights, name: str, freqs: list[float]
) -> Tensor:
    """Inverse RoPE, then the grouped low-rank output projection: [rows, heads, D] -> [rows, d]."""
    groups, rank = text["o_groups"], text["o_lora_rank"]
    flat = rotate(heads, positions, freqs, inverse=True).reshape(len(positions), groups, -1)
    wo_a = w[f"{name}.wo_a.weight"]
    parts = [flat[:, g] @ wo_a[g * rank : (g + 1) * rank].T for g in range(groups)]
    return torch.cat(parts, dim=-1) @ w[f"{name}.wo_b.weight"].T


def expert(x: Tensor, w: Weights, name: str, limit: float) -> Tensor:
    """w2(silu(min(w1 x, limit)) * clip(w3 x, +-limit))."""
    a = (x @ w[f"{name}.w1.weight"].T).clamp(max=limit)
    u = (x @ w[f"{name}.w3.weight"].T).clamp(min=-limit, max=limit)
    return (a * torch.sigmoid(a) * u) @ w[f"{name}.w2.weight"].T


def moe(x: Tensor, image: list[bool], text: dict[str, Any], w: Weights, name: str, top: int) -> Tensor:
    """The routed experts and the shared one, [rows, d] -> [rows, d].

    Args:
        x: [rows, d].
        image: Which rows route by the vision bias.
        text: The text config.
        w: weights.
        name: Like `layers.3.ffn`.
        top: Experts a token.
    """
    limit = text["swiglu_limit"]
    affinity = torch.sqrt(torch.nn.functional.softplus(x @ w[f"{name}.gate.weight"].T))
    out = expert(x, w, f"{name}.shared_experts", limit)
    for i, is_image in enumerate(image):
        bias = w[f"{name}.gate.bias_vl" if is_image else f"{name}.gate.bias"]
        wanted = (affinity[i] + bias).tolist()
        ranked = sorted(range(len(bias)), key=lambda e, wanted=wanted: -wanted[e])  # type: ignore[misc] # bound in the loop
        chosen = ranked[:top]
        total = sum(affinity[i, e] for e in chosen) + 1e-20
        for e in chosen:
            share = affinity[i, e] / total * text["routed_scaling_factor"]
            out[i] = out[i] + share * expert(x[i : i + 1], w, f"{name}.experts.{e}", limit)[0]
    return out

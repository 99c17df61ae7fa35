"""Mixture of experts: sqrt-softplus routing with a bias that only chooses, clamped SwiGLU, one shared expert.

Source: DeepSeek-V4.1-Flash, inference/model.py, revision dba1be0a.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override


class Sizes(NamedTuple):
    """Sizes of one mixture."""

    hidden: int
    inter: int
    experts: int
    chosen: int
    limit: float
    factor: float


class Gate(nn.Module):
    """Which experts a token goes to: s = sqrt(softplus(W x)), the best of s + bias, weights s / Σ s · factor.

    Image positions (their whole span) use `bias_vl` instead of `bias`.
    """

    def __init__(self, sizes: Sizes, *, images: bool) -> None:
        super().__init__()
        self.chosen, self.factor = sizes.chosen, sizes.factor
        self.weight = nn.Parameter(torch.zeros(sizes.experts, sizes.hidden))
        self.bias = nn.Parameter(torch.zeros(sizes.experts), requires_grad=False)
        if images:
            self.bias_vl = nn.Parameter(torch.zeros(sizes.experts), requires_grad=False)

    @override
    def forward(self, x: Tensor, image: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights and expert numbers, [n, chosen] each, of rows [n, d]; `image` [n] marks image positions."""
        affinity = functional.softplus(functional.linear(x, self.weight)).sqrt()
        bias = self.bias if image is None else torch.where(image[:, None], self.bias_vl, self.bias)
        chosen = (affinity.detach() + bias).topk(self.chosen, -1).indices
        picked = affinity.gather(-1, chosen)
        return picked / (picked.sum(-1, keepdim=True) + 1e-20) * self.factor, chosen


class Expert(nn.Module):
    """w2 (silu(min(w1 x, limit)) · clip(w3 x, ±limit))."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.limit = sizes.limit
        self.w1 = nn.Linear(sizes.hidden, sizes.inter, bias=False)
        self.w3 = nn.Linear(sizes.hidden, sizes.inter, bias=False)
        self.w2 = nn.Linear(sizes.inter, sizes.hidden, bias=False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """[n, d] to [n, d]."""
        out: Tensor = self.w2(gated(self.w1(x), self.w3(x), self.limit))
        return out


class Experts(nn.Module):
    """The routed experts, stacked: w1 and w3 [experts, inter, d], w2 [experts, d, inter]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.limit = sizes.limit
        self.w1 = nn.Parameter(torch.zeros(sizes.experts, sizes.inter, sizes.hidden))
        self.w3 = nn.Parameter(torch.zeros(sizes.experts, sizes.inter, sizes.hidden))
        self.w2 = nn.Parameter(torch.zeros(sizes.experts, sizes.hidden, sizes.inter))

    @override
    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Weighted sum over each row's experts, expert by expert over the rows that chose it."""
        order = chosen.flatten().argsort(stable=True)
        rows, scale = order // chosen.shape[1], weights.flatten()[order, None]
        counts = torch.bincount(chosen.flatten(), minlength=len(self.w1)).tolist()
        parts, start = [], 0
        for expert, count in enumerate(counts):
            if count:
                mine = slice(start, start + count)
                inputs = x[rows[mine]]
                hidden = gated(
                    functional.linear(inputs, self.w1[expert]), functional.linear(inputs, self.w3[expert]), self.limit
                )
                parts.append(functional.linear(hidden * scale[mine], self.w2[expert]))
                start += count
        return torch.zeros_like(x).index_add(0, rows, torch.cat(parts))


class MoE(nn.Module):
    """Routed experts plus the shared one."""

    def __init__(self, sizes: Sizes, *, shared: int, images: bool = True) -> None:
        super().__init__()
        self.gate = Gate(sizes, images=images)
        self.experts = Experts(sizes)
        self.shared_experts = Expert(sizes._replace(inter=sizes.inter * shared)) if shared else None

    @override
    def forward(self, x: Tensor, image: Tensor | None) -> Tensor:
        """[n, d] to [n, d]; `image` [n] marks image positions, None where there are none."""
        out: Tensor = self.experts(x, *self.gate(x, image))
        return out + self.shared_experts(x) if self.shared_experts is not None else out


def gated(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) · clip(up, ±limit)."""
    return functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)

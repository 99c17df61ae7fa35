"""The module tree: its parameter names are those of the released checkpoint, but for stacked experts (`checkpoint.py`).

Layer i: [Engram]; x = RMSNorm(Σ pre R) with the pre of the site before; attention; spread; the same for the experts.
After the last layer: Σ pre R of its own FFN site, RMSNorm, head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from epd_workers.reference.model.attention import Attention
from epd_workers.reference.model.engram import Engram
from epd_workers.reference.model.hyper import HyperConnection, Mix, collapse, first_pre, spread
from epd_workers.reference.model.moe import MoE, Sizes
from epd_workers.reference.model.norm import RMSNorm
from epd_workers.reference.model.vision import Aligner, Vision

if TYPE_CHECKING:
    from epd_workers.reference.model.config import Config, LayerPlan, TextConfig

INIT_SPREAD = 0.5
INIT_STAY = 3.0


class State(NamedTuple):
    """What crosses a layer boundary: streams [..., k, d] and the last site's pre [..., k]."""

    streams: Tensor
    pre: Tensor


class Site(NamedTuple):
    """A sublayer's input [..., d] and how its output goes back."""

    x: Tensor
    mix: Mix

    def leave(self, state: State, y: Tensor) -> State:
        """Put the sublayer's output [..., d] into the streams."""
        return State(spread(state.streams, y, self.mix), self.mix.pre)


class Layer(nn.Module):
    """One layer; the caller runs the attention itself between `enter_attention` and `leave`."""

    def __init__(self, text: TextConfig, plan: LayerPlan) -> None:
        super().__init__()
        self.plan = plan
        self.attn = Attention(text, plan)
        self.ffn = MoE(moe_sizes(text), shared=text.n_shared_experts)
        self.attn_norm = RMSNorm(text.hidden_size, text.rms_norm_eps)
        self.ffn_norm = RMSNorm(text.hidden_size, text.rms_norm_eps)
        self.hc_attn = HyperConnection(text)
        self.hc_ffn = HyperConnection(text)
        self.engram = Engram(text, plan.index) if plan.engram else None

    def enter_attention(self, state: State) -> Site:
        """The attention's input: collapsed with the pre of the site before."""
        return Site(self.attn_norm(collapse(state.streams, state.pre)), self.hc_attn(state.streams))

    def feed(self, state: State, image: Tensor | None) -> State:
        """The FFN sublayer over rows [..., k, d]; `image` [...] marks image positions."""
        site = Site(self.ffn_norm(collapse(state.streams, state.pre)), self.hc_ffn(state.streams))
        flat = site.x.reshape(-1, site.x.shape[-1])
        y = self.ffn(flat, None if image is None else image.reshape(-1)).view_as(site.x)
        return site.leave(state, y)


class Transformer(nn.Module):
    """All weights of a model."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        text = config.text
        self.config = config
        self.embed = nn.Embedding(text.vocab_size, text.hidden_size)
        self.layers = nn.ModuleList(Layer(text, plan) for plan in text.plans)
        self.norm = RMSNorm(text.hidden_size, text.rms_norm_eps)
        self.head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.vision = Vision(config.vision)
        self.aligner = Aligner(config.vision, text.hidden_size)
        self.image_start = nn.Parameter(torch.zeros(text.hidden_size))
        self.image_newline = nn.Parameter(torch.zeros(text.hidden_size))
        self.image_end = nn.Parameter(torch.zeros(text.hidden_size))

    def enter(self, rows: Tensor) -> State:
        """Embedding rows [..., d] in all streams."""
        k = self.config.text.hc_mult
        streams = rows[..., None, :].expand(*rows.shape[:-1], k, rows.shape[-1])
        return State(streams, first_pre(rows.shape[:-1], k, rows))

    def logits(self, state: State) -> Tensor:
        """[..., vocab]."""
        out: Tensor = self.head(self.norm(collapse(state.streams, state.pre)))
        return out


def moe_sizes(text: TextConfig) -> Sizes:
    """Sizes of the mixture in every layer of the trunk."""
    return Sizes(
        text.hidden_size,
        text.moe_intermediate_size,
        text.n_routed_experts,
        text.num_experts_per_tok,
        text.swiglu_limit,
        text.routed_scaling_factor,
    )


@torch.no_grad()
def initialise(model: Transformer, seed: int) -> Transformer:
    """Draw weights for training or tests: matrices at 1/sqrt(fan-in), streams that differ and mostly stay."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if leaf in {"q_weight", "k_weight"} or (leaf == "weight" and parameter.dim() == 1):
            parameter.fill_(1)
        elif parameter.dim() >= 2:
            scale = 1.0 if "embed" in name else parameter.shape[-1] ** -0.5
            parameter.normal_(0, scale, generator=generator)
        elif leaf == "base":
            k = model.config.text.hc_mult
            parameter.normal_(0, INIT_SPREAD, generator=generator)
            parameter[2 * k :] += INIT_STAY * torch.eye(k).flatten()
        elif leaf == "scale":
            parameter.fill_(INIT_SPREAD)
        elif leaf.startswith("image_"):
            parameter.normal_(0, 1, generator=generator)
        else:
            parameter.zero_()
    return model

"""One layer: Engram, attention and experts around the hyper-connections.

Layer i: [Engram]; x = RMSNorm(Σ pre R) with the pre of the site before; attention; spread; the same for the experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from epd_workers.reference.model.attention import Attention
from epd_workers.reference.model.engram import Engram
from epd_workers.reference.model.hyper import HyperConnection, Mix, collapse, spread
from epd_workers.reference.model.moe import MoE, Sizes
from epd_workers.reference.model.norm import RMSNorm

if TYPE_CHECKING:
    from epd_workers.reference.model.config import LayerPlan, TextConfig


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

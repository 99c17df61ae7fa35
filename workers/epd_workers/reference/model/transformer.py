"""The module tree: its parameter names are those of the released checkpoint, but for stacked experts (`checkpoint.py`).

The trunk's layers, then Σ pre R with the last FFN site's own pre, RMSNorm, head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from epd_workers.reference.model.draft import Draft
from epd_workers.reference.model.hyper import collapse, first_pre
from epd_workers.reference.model.layer import Layer, State
from epd_workers.reference.model.norm import RMSNorm
from epd_workers.reference.model.vision import Aligner, Vision

if TYPE_CHECKING:
    from epd_workers.reference.model.config import Config

INIT_SPREAD = 0.5
INIT_STAY = 3.0


class Transformer(nn.Module):
    """All weights of a model."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        text = config.text
        self.config = config
        # Not drawn: on the meta device drawing normal deviates imports a compiler, which takes seconds.
        blank = torch.zeros(text.vocab_size, text.hidden_size)
        self.embed = nn.Embedding(text.vocab_size, text.hidden_size, _weight=blank)
        self.layers = nn.ModuleList(Layer(text, plan) for plan in text.plans)
        self.norm = RMSNorm(text.hidden_size, text.rms_norm_eps)
        self.head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.mtp = Draft(text)
        self.vision = Vision(config.vision)
        self.aligner = Aligner(config.vision, text.hidden_size)
        self.image_start = nn.Parameter(torch.zeros(text.hidden_size))
        self.image_newline = nn.Parameter(torch.zeros(text.hidden_size))
        self.image_end = nn.Parameter(torch.zeros(text.hidden_size))

    @property
    def stack(self) -> list[Layer]:
        """The trunk's layers, in order."""
        return cast("list[Layer]", list(self.layers))

    def enter(self, rows: Tensor) -> State:
        """Embedding rows [..., d] in all streams."""
        k = self.config.text.hc_mult
        streams = rows[..., None, :].expand(*rows.shape[:-1], k, rows.shape[-1])
        return State(streams, first_pre(rows.shape[:-1], k, rows))

    def logits(self, state: State) -> Tensor:
        """[..., vocab]."""
        out: Tensor = self.head(self.norm(collapse(state.streams, state.pre)))
        return out


@torch.no_grad()
def initialise(model: Transformer, seed: int) -> Transformer:
    """Draw weights for training or tests: matrices at 1/sqrt(fan-in), streams that differ and mostly stay."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if leaf in {"q_weight", "k_weight"} or (leaf == "weight" and parameter.dim() == 1):
            parameter.fill_(1)
        elif parameter.dim() >= 2:
            scale = 1.0 if name == "embed.weight" else parameter.shape[-1] ** -0.5
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

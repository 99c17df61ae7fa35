"""The whole forward over a padded batch, differentiable and without caches: what training runs.

Every row of the batch is a sequence from position 0. Global branches see all visible entries (`Selection.ALL`) or, as
in serving, the indexer's choice alone (`Selection.TOP`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import torch

from epd_kernels.candidate_blocks.reference import candidate_blocks
from epd_kernels.formats import reference as formats
from epd_kernels.index_scores.reference import NEVER, block_maxima
from epd_kernels.top_entries.reference import top_entries
from epd_workers.reference.model.attention import attend
from epd_workers.reference.model.indexer import scores
from epd_workers.reference.model.rope import Rotation, layer_frequencies, rotation

if TYPE_CHECKING:
    from torch import Tensor

    from epd_kernels.formats.reference import Codec
    from epd_workers.reference.model.layer import Layer
    from epd_workers.reference.model.transformer import Transformer


class Selection(Enum):
    """Which visible global entries a query attends to."""

    ALL = "all"
    TOP = "top"


@dataclass(frozen=True)
class Options:
    """How to run.

    Attributes:
        selection: See `Selection`.
        rounded: Round windows, entries and index vectors as the caches do (straight-through gradients).
        distil: Also compare each index source's scores with its attention.
    """

    selection: Selection = Selection.ALL
    rounded: bool = False
    distil: bool = False


@dataclass
class Result:
    """What a forward gives.

    Attributes:
        logits: [batch, tokens, vocab].
        features: Inputs of the draft's target layers: mean of the streams, [batch, tokens, targets * d].
        distillation: Per index source, KL of the attention's summed head weights against the scores' softmax (scalar).
        missed: Per index source, -log of the attention that falls on what `Aims` names (scalar).
        sources: Inputs of the owners of global entries, [batch, tokens, d], by layer.
    """

    logits: Tensor
    features: Tensor
    distillation: list[Tensor] = field(default_factory=list)
    missed: list[Tensor] = field(default_factory=list)
    sources: dict[int, Tensor] = field(default_factory=dict)


class Aims(NamedTuple):
    """Which earlier token some tokens should look at: [n] int64 each."""

    batch: Tensor
    row: Tensor
    token: Tensor


@dataclass
class _Pass:
    """Shared by the layers of one forward."""

    model: Transformer
    options: Options
    image: Tensor
    positions: Tensor
    window: Tensor
    rotations: dict[int, Rotation]
    aims: Aims | None = None
    entries: dict[int, Tensor] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    masks: dict[int, Tensor] = field(default_factory=dict)
    candidates: Tensor | None = None
    distillation: list[Tensor] = field(default_factory=list)
    missed: list[Tensor] = field(default_factory=list)
    sources: dict[int, Tensor] = field(default_factory=dict)

    def round(self, x: Tensor, codec: Codec) -> Tensor:
        return formats.ste(x, codec.round(x.detach())) if self.options.rounded else x


def run(
    model: Transformer,
    rows: Tensor,
    image: Tensor,
    engram: dict[int, Tensor],
    options: Options,
    *,
    aims: Aims | None = None,
) -> Result:
    """Run a batch.

    Args:
        model: The weights.
        rows: Embeddings [batch, tokens, d], image rows in place. Padding goes behind: nothing looks forward.
        image: [batch, tokens], true at image positions (delimiters included).
        engram: Per Engram layer, the table columns [batch, tokens, columns].
        options: How.
        aims: What the global attention is to be measured against.
    """
    text, tokens = model.config.text, rows.shape[1]
    positions = torch.arange(tokens)
    gap = positions[:, None] - positions
    window = (gap >= 0) & (gap < text.sliding_window)
    rotations = {
        ratio: rotation(positions, layer_frequencies(text, ratio), rows.dtype) for ratio in {*text.compress_ratios, 0}
    }
    shared = _Pass(model, options, image, positions, window, rotations, aims)
    state, features = model.enter(rows), {}
    for layer in model.stack:
        index = layer.plan.index
        if index in text.dspark_target_layer_ids:
            features[index] = state.streams.mean(-2)
        if layer.engram is not None:
            state = state._replace(streams=layer.engram(state.streams, engram[index], image))
        site = layer.enter_attention(state)
        state = site.leave(state, _attention(layer, site.x, shared))
        state = layer.feed(state, image)
    stacked = torch.cat([features[i] for i in text.dspark_target_layer_ids], -1) if features else rows[..., :0]
    return Result(model.logits(state), stacked, shared.distillation, shared.missed, shared.sources)


def _attention(layer: Layer, x: Tensor, shared: _Pass) -> Tensor:
    attn, plan = layer.attn, layer.plan
    turn = shared.rotations[plan.ratio]
    latent = attn.query_latent(x)
    query = attn.query(latent, turn)
    keys = shared.round(attn.entry(x, turn), formats.WINDOW)
    mask = shared.window.expand(len(x), -1, -1)
    if plan.ratio:
        if attn.compressor is not None:
            shared.sources[plan.index] = x
            _compress(layer, x, shared)
        entries = shared.entries[plan.kv_source]
        if attn.indexer is not None:
            shared.masks[plan.index] = _select(layer, x, latent, query, shared)
            if shared.aims is not None:
                shared.missed.append(_missed(query, entries, plan.ratio, shared.aims))
        keys = torch.cat((keys, entries), 1)
        mask = torch.cat((mask, shared.masks[plan.index_source]), -1)
    return attn.output(attend(query, keys, mask, attn.attn_sink), turn)


def _compress(layer: Layer, x: Tensor, shared: _Pass) -> None:
    attn, plan = layer.attn, layer.plan
    assert attn.compressor is not None
    assert attn.indexer is not None
    if plan.ratio == 1:
        latent = attn.compressor.latent(x)
    else:
        pairs = x[:, : x.shape[1] // plan.ratio * plan.ratio]
        latent = attn.compressor.pool(attn.compressor.project(pairs).unflatten(1, (-1, plan.ratio)))
    turn = shared.rotations[plan.ratio][:: plan.ratio][: latent.shape[1]]
    shared.entries[plan.index] = shared.round(turn.apply(latent), formats.MAIN)
    # The indexer learns from the attention alone: its keys must not pull at the latents.
    shared.keys[plan.index] = shared.round(attn.indexer.key(latent.detach(), turn), formats.INDEX)


def _select(layer: Layer, x: Tensor, latent: Tensor, query: Tensor, shared: _Pass) -> Tensor:
    attn, plan, options = layer.attn, layer.plan, shared.options
    assert attn.indexer is not None
    text = shared.model.config.text
    keys = shared.keys[plan.kv_source]
    visible = (shared.positions + 1) // plan.ratio
    seen = torch.arange(keys.shape[1]) < visible[:, None]
    if options.selection is Selection.ALL and not options.distil:
        return seen.expand(len(x), -1, -1)
    index_query, weights = attn.indexer.query(latent.detach(), x.detach(), shared.rotations[plan.ratio])
    values = scores(shared.round(index_query, formats.INDEX), weights, keys)
    values = values.masked_fill(~seen, NEVER)
    if options.distil:
        shared.distillation.append(_divergence(values, query, shared.entries[plan.kv_source], seen))
    if options.selection is Selection.ALL:
        return seen.expand(len(x), -1, -1)
    ranked = values.detach().flatten(0, 1)
    size = text.candidate_block_size
    if plan.candidates:
        maxima = block_maxima(ranked, size)
        blocks = candidate_blocks(maxima, visible.repeat(len(x)), block=size, count=text.candidate_topk_blocks)
        shared.candidates = _mask(blocks, maxima.shape[1]).repeat_interleave(size, 1)[:, : ranked.shape[1]]
    elif plan.mode == "Reindex":
        assert shared.candidates is not None
        ranked = ranked.masked_fill(~shared.candidates, NEVER)
    chosen = top_entries(ranked, count=text.index_topk, block=size)
    kept: Tensor = _mask(chosen, ranked.shape[1]).unflatten(0, (len(x), -1))
    return kept


def _mask(chosen: Tensor, count: int) -> Tensor:
    """Mask [rows, count] of chosen numbers [rows, n], -1 for none."""
    mask = torch.zeros(len(chosen), count + 1, dtype=torch.bool)
    mask.scatter_(1, chosen.long().masked_fill(chosen < 0, count), value=True)
    return mask[:, :count]


def _missed(query: Tensor, entries: Tensor, ratio: int, aims: Aims) -> Tensor:
    """-log of the heads' mean attention to the aimed entries, among all visible ones; mean over those visible."""
    aim = aims.token // ratio
    visible = (aims.row + 1) // ratio
    there = aim < visible
    logits = torch.einsum("nhd,nkd->nhk", query[aims.batch, aims.row], entries[aims.batch]) * query.shape[-1] ** -0.5
    unseen = torch.arange(entries.shape[1]) >= visible[:, None]
    shares = logits.masked_fill(unseen[:, None], NEVER).log_softmax(-1)[there]
    hits = shares.gather(-1, aim[there][:, None, None].expand(-1, shares.shape[1], 1)).squeeze(-1)
    missed: Tensor = math.log(hits.shape[-1]) - hits.logsumexp(-1).mean()
    return missed


def _divergence(values: Tensor, query: Tensor, entries: Tensor, seen: Tensor) -> Tensor:
    """KL(attention over entries, summed over heads || softmax of scores), mean over rows that see an entry."""
    with torch.no_grad():
        logits = torch.einsum("bthd,bnd->bhtn", query, entries) * query.shape[-1] ** -0.5
        target = logits.masked_fill(~seen, NEVER).softmax(-1).mean(1).nan_to_num()
    rows = seen.any(-1)
    predicted = values[:, rows].log_softmax(-1)
    target = target[:, rows]
    return torch.where(target > 0, target * (target.clamp(min=1e-9).log() - predicted), 0.0).sum(-1).mean()

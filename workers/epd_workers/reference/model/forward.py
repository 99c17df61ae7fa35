"""One step of a ragged batch over the caches: prefill chunks and decode steps alike.

The tricky idea: a decode step is a chunk of one token, so chunked and whole prefill, batched and single, prefix hits
and restarts are one path. Every row writes its window entry (and owners their global entries) in the caches' formats
first and then reads them back, so nobody ever sees a value that another process would not see.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, cast

import torch

from epd_workers.reference.model.attention import Keys, attend
from epd_workers.reference.model.hyper import collapse
from epd_workers.reference.model.indexer import NEVER, candidates, keep_best, positions_of, scores
from epd_workers.reference.model.interface import Extend, Output
from epd_workers.reference.model.layer import State
from epd_workers.reference.model.replay import Preset, Work, tail_rows
from epd_workers.reference.model.rope import Rotation, layer_frequencies, rotation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from epd_workers.reference.cache.pool import KvPool
    from epd_workers.reference.model.engram_hash import EngramHash, History
    from epd_workers.reference.model.layer import Layer
    from epd_workers.reference.model.transformer import Transformer

_BLOCK = 128  # query rows at once: bounds the score matrices of a long prompt


@dataclass
class _Part:
    """One request's rows in the batch, from `first` to `end`."""

    extend: Extend
    first: int
    end: int
    floor: int
    late_floor: int
    tail: int
    keys: dict[int, Tensor] = field(default_factory=dict)
    entries: dict[int, Tensor] = field(default_factory=dict)
    chosen: dict[int, Tensor] = field(default_factory=dict)
    candidates: Tensor | None = None

    @property
    def rows(self) -> int:
        return self.end - self.first

    @property
    def positions(self) -> Tensor:
        return torch.arange(self.first, self.end)

    def narrow(self) -> None:
        """Go on with the last `tail` rows alone."""
        self.first, self.floor = self.end - self.tail, self.late_floor
        self.chosen = {source: rows[-self.tail :] for source, rows in self.chosen.items()}
        if self.candidates is not None:
            self.candidates = self.candidates[-self.tail :]


@dataclass
class _Batch:
    """All rows of a step."""

    parts: list[_Part]
    image: Tensor
    rotations: dict[int, Rotation]

    def slices(self) -> list[slice]:
        ends = list(accumulate(part.rows for part in self.parts))
        return [slice(end - part.rows, end) for part, end in zip(self.parts, ends, strict=True)]

    def narrow(self, state: State) -> State:
        """Keep the tails of all parts, in the rows' own tensors and in those of `state`."""
        if all(part.tail == part.rows for part in self.parts):
            for part in self.parts:
                part.narrow()
            return state
        spans = zip(self.parts, self.slices(), strict=True)
        keep = torch.cat([torch.arange(span.stop - part.tail, span.stop) for part, span in spans])
        for part in self.parts:
            part.narrow()
        self.image = self.image[keep]
        self.rotations = {ratio: turn[keep] for ratio, turn in self.rotations.items()}
        return State(state.streams[keep], state.pre[keep])


class Forward:
    """A model over one pool. Not thread-safe: one thread calls it."""

    def __init__(self, model: Transformer, engram: EngramHash | None, pool: KvPool, replay: Preset | None) -> None:
        """Bind the weights to a pool.

        Args:
            model: The weights, in the dtype to compute in.
            engram: Which Engram rows tokens read; None for a model without Engram layers.
            pool: Where the caches are.
            replay: The rule of decoder bounded replay; None runs every layer on every row.
        """
        self._model = model
        self._text = model.config.text
        self._image_id = model.config.image_token_id
        self._engram = engram
        self._pool = pool
        self._replay = replay
        self._dtype = model.embed.weight.dtype
        self._frequencies = {ratio: layer_frequencies(self._text, ratio) for ratio in {0, *self._text.compress_ratios}}

    @torch.inference_mode()
    def __call__(self, extends: Sequence[Extend]) -> Output:
        """Run one step; every sequence is longer behind it by its new tokens."""
        batch = self._batch(extends)
        ids = torch.tensor([token for extend in extends for token in extend.token_ids])
        state = self._model.enter(self._embed(ids, extends))
        columns = self._columns(extends)
        first_late = self._text.num_hidden_layers if self._replay is None else self._replay.first_late(self._text)
        rows = sum(part.rows for part in batch.parts)
        for layer in self._model.stack:
            plan = layer.plan
            if layer.engram is not None:
                order = self._text.engram_layer_ids.index(plan.index)
                state = state._replace(streams=layer.engram(state.streams, columns[order], batch.image))
            if plan.owns_kv:
                self._compress(layer, layer.attn_norm(collapse(state.streams, state.pre)), batch)
            if plan.index == first_late:
                state = batch.narrow(state)
            site = layer.enter_attention(state)
            state = layer.feed(site.leave(state, self._attention(layer, site.x, batch)), batch.image)
        for extend in extends:
            extend.sequence.advance(len(extend.token_ids) - extend.replayed)
        return Output(self._logits(state, batch), self._work(batch, rows, first_late))

    def _batch(self, extends: Sequence[Extend]) -> _Batch:
        parts, window = [], self._text.sliding_window
        for extend in extends:
            whole = extend.all_logits or extend.decode
            tail = tail_rows(self._replay, len(extend.token_ids), window, whole=whole)
            floor = extend.start if extend.replayed else 0
            late = floor if self._replay is None or whole else self._replay.floor(extend.end, tail, window)
            parts.append(_Part(extend, extend.start, extend.end, floor, max(floor, late), tail))
        positions = torch.cat([part.positions for part in parts])
        turns = {ratio: rotation(positions, turn, self._dtype) for ratio, turn in self._frequencies.items()}
        ids = torch.tensor([token for extend in extends for token in extend.token_ids])
        return _Batch(parts, ids == self._image_id, turns)

    def _embed(self, ids: Tensor, extends: Sequence[Extend]) -> Tensor:
        rows: Tensor = self._model.embed(ids)
        start = 0
        for extend in extends:
            for image in extend.embeddings:
                at = start + image.offset
                rows[at : at + len(image.values)] = image.values.to(rows.dtype)
            start += len(extend.token_ids)
        return rows

    def _columns(self, extends: Sequence[Extend]) -> Tensor:
        if self._engram is None:
            return torch.zeros(0)
        found = []
        for extend in extends:
            ids = torch.tensor(list(extend.token_ids))
            before = cast("History", extend.sequence.history)
            columns, extend.sequence.history = self._engram(ids, ids == self._image_id, before)
            found.append(columns)
        return torch.cat(found, 1)

    def _logits(self, state: State, batch: _Batch) -> list[Tensor]:
        wanted = []
        for part, span in zip(batch.parts, batch.slices(), strict=True):
            first = span.start + part.extend.replayed if part.extend.all_logits else span.stop - 1
            wanted.append(torch.arange(first, span.stop))
        rows = torch.cat(wanted)
        logits = self._model.logits(State(state.streams[rows], state.pre[rows])).float()
        return list(logits.split([len(part) for part in wanted]))

    def _work(self, batch: _Batch, rows: int, first_late: int) -> Work:
        layers, split = self._text.num_hidden_layers, self._text.split
        kept = sum(part.tail for part in batch.parts)
        whole = max(0, min(first_late, layers) - split)
        decoder = rows * whole + kept * (layers - split - whole)
        return Work(
            encoder=rows * split,
            decoder=decoder,
            skipped=rows * (layers - split) - decoder,
            replayed=sum(part.extend.replayed for part in batch.parts),
        )

    def _compress(self, layer: Layer, x: Tensor, batch: _Batch) -> None:
        for part, span in zip(batch.parts, batch.slices(), strict=True):
            rows = x[span][part.extend.replayed :]
            if len(rows):
                self._compress_part(layer, rows, part)

    def _compress_part(self, layer: Layer, x: Tensor, part: _Part) -> None:
        attn, plan, sequence = layer.attn, layer.plan, part.extend.sequence
        assert attn.compressor is not None
        assert attn.indexer is not None
        first = part.end - len(x)
        if plan.ratio == 1:
            latent = attn.compressor.latent(x)
        else:
            tokens = attn.compressor.project(x)
            pending = sequence.pending.get(plan.index)
            if pending is not None:
                tokens, first = torch.cat((torch.stack(pending)[None].to(tokens.dtype), tokens)), first - 1
            unpaired = len(tokens) % plan.ratio
            content, gate = tokens[-1].float()
            sequence.pending[plan.index] = (content, gate) if unpaired else None
            tokens = tokens[: len(tokens) - unpaired]
            if not len(tokens):
                return
            latent = attn.compressor.pool(tokens.unflatten(0, (-1, plan.ratio)))
        positions = first + plan.ratio * torch.arange(len(latent))
        turn = rotation(positions, self._frequencies[plan.ratio], self._dtype)
        slots = sequence.entry_slots(positions // plan.ratio, plan.ratio)
        self._pool.write_main(plan.index, slots, turn.apply(latent))
        self._pool.write_index(plan.index, slots, attn.indexer.key(latent, turn))

    def _attention(self, layer: Layer, x: Tensor, batch: _Batch) -> Tensor:
        attn = layer.attn
        turn = batch.rotations[layer.plan.ratio]
        latent = attn.query_latent(x)
        query, entry = attn.query(latent, turn), attn.entry(x, turn)
        mixed = []
        for part, span in zip(batch.parts, batch.slices(), strict=True):
            slots = part.extend.sequence.window_slots(part.positions)
            self._pool.write_window(layer.plan.index, slots, entry[span])
            if attn.indexer is not None:
                self._select(layer, latent[span], x[span], turn[span], part)
            mixed.append(self._mix(layer, query[span], part))
        return attn.output(torch.cat(mixed), turn)

    def _select(self, layer: Layer, latent: Tensor, x: Tensor, turn: Rotation, part: _Part) -> None:
        attn, plan, text = layer.attn, layer.plan, self._text
        assert attn.indexer is not None
        query, weights = attn.indexer.query(latent, x, turn)
        query = self._pool.geometry.index_codec.round(query)
        keys = self._keys(part, plan.kv_source, plan.ratio)
        visible = (part.positions + 1) // plan.ratio
        order = torch.arange(len(keys))
        chosen, allowed = [], []
        for rows in _blocks(part.rows):
            seen = visible[rows]
            values = scores(query[rows], weights[rows], keys)
            values = values.masked_fill(order >= seen[:, None], NEVER)
            if plan.candidates:
                allowed.append(candidates(values, seen, text.candidate_block_size, text.candidate_topk_blocks))
            elif plan.mode == "Reindex":
                assert part.candidates is not None
                values = values.masked_fill(~part.candidates[rows], NEVER)
            chosen.append(positions_of(keep_best(values, text.index_topk), min(text.index_topk, len(keys))))
        part.chosen[plan.index] = torch.cat(chosen)
        if plan.candidates:
            part.candidates = torch.cat(allowed)

    def _keys(self, part: _Part, source: int, ratio: int) -> Tensor:
        if source not in part.keys:
            part.keys[source] = self._pool.read_index(source, self._all_slots(part, ratio), self._dtype)
        return part.keys[source]

    def _all_slots(self, part: _Part, ratio: int) -> Tensor:
        return part.extend.sequence.entry_slots(torch.arange(part.end // ratio), ratio)

    def _mix(self, layer: Layer, query: Tensor, part: _Part) -> Tensor:
        plan, window, sequence = layer.plan, self._text.sliding_window, part.extend.sequence
        low = max(part.floor, part.first - window + 1)
        held = torch.arange(low, part.end)
        latents = self._pool.read_window(plan.index, sequence.window_slots(held), self._dtype)
        mixed = []
        for rows in _blocks(part.rows):
            first, last = part.first + rows.start, part.first + rows.stop
            near = slice(max(first - window + 1, low) - low, last - low)
            gap = torch.arange(first, last)[:, None] - held[near]
            groups = [Keys(latents[near], (gap >= 0) & (gap < window))]
            if plan.ratio:
                chosen = part.chosen[plan.index_source][rows]
                groups.append(Keys(self._entries(part, plan.kv_source, plan.ratio, chosen), chosen >= 0))
            mixed.append(attend(query[rows], groups, layer.attn.attn_sink))
        return torch.cat(mixed)

    def _entries(self, part: _Part, source: int, ratio: int, chosen: Tensor) -> Tensor:
        """Global entries [rows, n, dim] of chosen [rows, n] (-1: anything, it is not visible)."""
        count = part.end // ratio
        if source not in part.entries and chosen.numel() < count:
            return self._pool.read_main(source, part.extend.sequence.entry_slots(chosen, ratio), self._dtype)
        if source not in part.entries:
            part.entries[source] = self._pool.read_main(source, self._all_slots(part, ratio), self._dtype)
        return part.entries[source][chosen.clamp(min=0)]


def _blocks(rows: int) -> list[slice]:
    return [slice(start, min(start + _BLOCK, rows)) for start in range(0, rows, _BLOCK)]

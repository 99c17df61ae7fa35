"""One step of a ragged batch over the caches: prefill chunks and decode steps alike.

The tricky idea: a decode step is a chunk of one token, so chunked and whole prefill, batched and single, prefix hits
and restarts are one path. Every row writes its window entry (and owners their global entries) in the caches' formats
first and then reads them back, so nobody ever sees a value that another process would not see. What touches the
caches goes through the kernel library's operations, over the rows of all requests at once.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, cast

import torch

from epd_kernels.paged import Paged
from epd_workers.reference.model.batch import Batch, Rows, fresh_rows, lay_out, tables
from epd_workers.reference.model.hyper import collapse
from epd_workers.reference.model.interface import Extend, Output
from epd_workers.reference.model.layer import State
from epd_workers.reference.model.replay import Preset, Work, early_layers
from epd_workers.reference.model.rope import layer_frequencies, rotation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from epd_kernels.dispatch import Operations
    from epd_kernels.tail_layout.reference import Layout
    from epd_workers.reference.cache.paged_pool import KvPool
    from epd_workers.reference.model.engram_hash import EngramHash, History
    from epd_workers.reference.model.layer import Layer
    from epd_workers.reference.model.transformer import Transformer


class Forward:
    """A model over one pool. Not thread-safe: one thread calls it.

    Args:
        model: The weights, in the dtype to compute in.
        engram: Which Engram rows tokens read; None for a model without Engram layers.
        pool: Where the caches are.
        replay: The rule of decoder bounded replay; None runs every layer on every row.
        operations: What touches the caches.
    """

    def __init__(
        self,
        model: Transformer,
        engram: EngramHash | None,
        pool: KvPool,
        replay: Preset | None,
        operations: Operations,
    ) -> None:
        self._model = model
        self._text = model.config.text
        self._image_id = model.config.image_token_id
        self._engram = engram
        self._pool = pool
        self._replay = replay
        self._operations = operations
        self._dtype = model.embed.weight.dtype
        self._frequencies = {ratio: layer_frequencies(self._text, ratio) for ratio in {0, *self._text.compress_ratios}}

    @torch.inference_mode()
    def __call__(self, extends: Sequence[Extend]) -> Output:
        """Run one step; every sequence is longer behind it by its new tokens."""
        ids = torch.tensor([token for extend in extends for token in extend.token_ids])
        batch = self._batch(extends, ids)
        state = self._model.enter(self._embed(ids, extends))
        columns = self._columns(extends)
        first_late = self._first_late
        for layer in self._model.stack:
            plan = layer.plan
            if layer.engram is not None:
                order = self._text.engram_layer_ids.index(plan.index)
                state = state._replace(streams=layer.engram(state.streams, columns[order], batch.rows.image))
            if plan.owns_kv:
                self._compress(layer, layer.attn_norm(collapse(state.streams, state.pre)), batch)
            if plan.index == first_late:
                state = self._narrow(state, batch)
            site = layer.enter_attention(state)
            state = layer.feed(site.leave(state, self._attention(layer, site.x, batch)), batch.rows.image)
        for extend in extends:
            extend.sequence.advance(len(extend.token_ids) - extend.replayed)
        return Output(self._logits(state, batch), self._work(batch, len(ids)))

    @property
    def _first_late(self) -> int:
        return early_layers(self._replay, self._text)

    def _batch(self, extends: Sequence[Extend], ids: Tensor) -> Batch:
        replay = self._replay if self._first_late < self._text.num_hidden_layers else None
        layouts = lay_out(self._operations, extends, self._text.sliding_window, replay)
        pages, windows = tables(extends)
        rows = self._rows(layouts.early, ids == self._image_id, windows)
        return Batch(extends, layouts, fresh_rows(layouts.early, extends), pages, windows, rows)

    def _rows(self, layout: Layout, image: Tensor, windows: Tensor) -> Rows:
        size, run = self._pool.geometry.page_size, self._operations
        turns = {ratio: rotation(layout.positions, turn, self._dtype) for ratio, turn in self._frequencies.items()}
        read = run.window_slots(
            layout.positions,
            layout.floors,
            layout.requests,
            windows,
            page_size=size,
            window=self._text.sliding_window,
        )
        written = run.entry_slots(layout.positions[:, None], layout.requests, windows, page_size=size).squeeze(1)
        return Rows(layout, image, turns, read, written)

    def _narrow(self, state: State, batch: Batch) -> State:
        """Go on with only the late rows."""
        late, rows = batch.layouts.late, batch.rows
        if late is None:
            return state
        carried = [*rows.selected.values(), *([] if rows.candidates is None else [rows.candidates])]
        streams, pre, image, *kept = self._operations.gather_rows(
            [state.streams, state.pre, rows.image, *carried], late.rows
        )
        batch.rows = self._rows(late, image, batch.windows)
        batch.rows.selected = dict(zip(rows.selected, kept, strict=False))
        batch.rows.candidates = None if rows.candidates is None else kept[-1]
        return State(streams, pre)

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
        result = []
        for extend in extends:
            ids = torch.tensor(list(extend.token_ids))
            before = cast("History", extend.sequence.history)
            columns, extend.sequence.history = self._engram(ids, ids == self._image_id, before)
            result.append(columns)
        return torch.cat(result, 1)

    def _logits(self, state: State, batch: Batch) -> list[Tensor]:
        ends = accumulate(batch.layouts.kept)
        wanted = []
        for extend, end, count in zip(batch.extends, ends, batch.layouts.kept, strict=True):
            first = end - count + extend.replayed if extend.all_logits else end - 1
            wanted.append(torch.arange(first, end))
        streams, pre = self._operations.gather_rows([state.streams, state.pre], torch.cat(wanted))
        logits = self._model.logits(State(streams, pre)).float()
        return list(logits.split([len(part) for part in wanted]))

    def _work(self, batch: Batch, rows: int) -> Work:
        layers, split = self._text.num_hidden_layers, self._text.split
        whole = max(0, self._first_late - split)
        decoder = rows * whole + sum(batch.layouts.kept) * (layers - split - whole)
        return Work(
            encoder=rows * split,
            decoder=decoder,
            skipped=rows * (layers - split) - decoder,
            replayed=sum(extend.replayed for extend in batch.extends),
        )

    def _compress(self, layer: Layer, x: Tensor, batch: Batch) -> None:
        """Write the global entries and index keys that the step's new rows complete."""
        attn, plan, fresh, run = layer.attn, layer.plan, batch.fresh, self._operations
        assert attn.compressor is not None
        assert attn.indexer is not None
        (x,) = run.gather_rows([x], fresh.rows)
        if plan.ratio == 1:
            latents, entries, requests = attn.compressor.latent(x), fresh.positions, fresh.requests
        else:
            latents, entries, requests = self._pool_pairs(layer, x, batch)
        turn = rotation(entries * plan.ratio, self._frequencies[plan.ratio], self._dtype)
        slots = self._entry_slots(entries[:, None], requests, plan.ratio, batch).squeeze(1)
        run.pack(turn.apply(latents), self._pool.main(plan.index), slots)
        run.pack(attn.indexer.key(latents, turn), self._pool.index(plan.index), slots)

    def _pool_pairs(self, layer: Layer, x: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Latents [N, dim], entries [N] and requests [N] of the pairs that are complete now; keeps unpaired tokens."""
        compressor, index, fresh = layer.attn.compressor, layer.plan.index, batch.fresh
        assert compressor is not None
        sequences = [extend.sequence for extend in batch.extends]
        tokens = compressor.project(x)
        held = [sequence.pending[index] for sequence in sequences]
        blank = torch.zeros(tokens.shape[1:])
        pairs = self._operations.pool_pairs(
            tokens,
            fresh.starts,
            fresh.firsts,
            torch.stack([blank if pair is None else torch.stack(pair) for pair in held]),
            torch.tensor([pair is not None for pair in held]),
            compressor.norm.weight,
            compressor.norm.eps,
            capacity=sum(extend.end // 2 - extend.sequence.length // 2 for extend in batch.extends),
        )
        for sequence, pair, waits in zip(sequences, pairs.pending, pairs.waiting.tolist(), strict=True):
            sequence.pending[index] = (pair[0], pair[1]) if waits else None
        return pairs.latents, pairs.entries, pairs.requests

    def _entry_slots(self, entries: Tensor, requests: Tensor, ratio: int, batch: Batch) -> Tensor:
        size = self._pool.geometry.page_size // ratio
        return self._operations.entry_slots(entries, requests, batch.pages, page_size=size)

    def _attention(self, layer: Layer, x: Tensor, batch: Batch) -> Tensor:
        attn, plan, rows = layer.attn, layer.plan, batch.rows
        turn = rows.rotations[plan.ratio]
        latent = attn.query_latent(x)
        query = attn.query(latent, turn)
        window = self._pool.window(plan.index)
        self._operations.pack(attn.entry(x, turn), window, rows.written)
        if attn.indexer is not None:
            self._select(layer, latent, x, batch)
        mixed = self._operations.attend(
            query,
            window,
            rows.read,
            self._pool.main(plan.kv_source) if plan.ratio else None,
            rows.selected[plan.index_source] if plan.ratio else None,
            attn.attn_sink,
            scale=attn.dim**-0.5,
        )
        return attn.output(mixed.output, turn)

    def _select(self, layer: Layer, latent: Tensor, x: Tensor, batch: Batch) -> None:
        attn, plan, rows, text = layer.attn, layer.plan, batch.rows, self._text
        assert attn.indexer is not None
        query, weights = attn.indexer.query(latent, x, rows.rotations[plan.ratio])
        requests = rows.layout.requests
        selection = self._operations.select_entries(
            self._packed(query),
            weights,
            self._pool.index(plan.kv_source),
            batch.pages,
            requests,
            (rows.layout.positions + 1) // plan.ratio,
            count=text.index_topk,
            block=text.candidate_block_size,
            blocks=text.candidate_topk_blocks if plan.candidates else None,
            candidates=rows.candidates if plan.mode == "Reindex" else None,
        )
        rows.selected[plan.index] = self._entry_slots(selection.entries, requests, plan.ratio, batch)
        if plan.candidates:
            rows.candidates = selection.candidates

    def _packed(self, query: Tensor) -> Tensor:
        """Index queries [R, heads, dim] as rows of the index format [R, heads, bytes]."""
        codec, (rows, heads, dim) = self._pool.geometry.index_codec, query.shape
        page = Paged(torch.empty(1, rows * heads * codec.width(dim), dtype=torch.uint8), rows * heads, dim, codec)
        self._operations.pack(query.flatten(0, 1), page, torch.arange(rows * heads))
        return page.data.view(rows, heads, -1)

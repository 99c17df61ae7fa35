"""The whole text model in float64 with dense masks over full sequences: slow, cache-free, from the formulas.

Source: DeepSeek-V4.1-Flash inference/model.py, revision dba1be0a.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tests.reference.model.oracle_engram import engram, rows_of
from tests.reference.model.oracle_formats import KvMode, round_index, round_main
from tests.reference.model.oracle_parts import (
    Weights,
    attend,
    collapse,
    expand,
    frequencies,
    mix,
    moe,
    output,
    queries,
    rms,
    rotate,
    window_rows,
)
from tests.reference.model.oracle_rows import (
    Replay,
    Step,
    late_start,
    steps_of,
    unwritten_reads,
    visible_windows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass
class LayerTrace:
    """What one layer did; rows that it did not run are NaN in `inputs`, `output` and `window`."""

    rows: list[int]
    inputs: Tensor  # [n, streams, d], before Engram and the attention site
    output: Tensor  # [n, streams, d]
    window: Tensor  # [n, head_dim], as its cache returns it
    entries: Tensor | None = None  # [groups, head_dim], owners only
    index_keys: Tensor | None = None  # [groups, index_head_dim], owners only
    scores: dict[int, Tensor] = field(default_factory=dict)  # row -> index scores of its visible entries
    selection: dict[int, list[int]] = field(default_factory=dict)  # row -> selected entries, ascending
    candidates: dict[int, list[int]] = field(default_factory=dict)  # row -> candidate entries, ascending


@dataclass
class Trace:
    """A run: logits [n, vocab] (NaN where the last layer did not run), every layer, and the work done."""

    logits: Tensor
    layers: list[LayerTrace]
    pre: Tensor  # [n, streams], of the last FFN
    rows_x_layers: int
    projected_rows: int  # rows for which the tail's first layer made global entries and nothing else
    # The smallest gap between a kept and a dropped index or block score. FP4 scores can tie exactly (more often the
    # longer the text); compare with another implementation only where this is above rounding.
    tightest_choice: float


@dataclass
class _Run:
    text: dict[str, Any]
    w: Weights
    kv: KvMode
    ids: list[int]
    image: list[bool]
    token_map: list[int]
    hit: int
    given: Trace | None
    layers: list[LayerTrace] = field(default_factory=list)
    gap: float = math.inf


def _top(run: _Run, scores: Tensor, count: int, *, forced: int | None = None) -> list[int]:
    """The `count` highest finite scores, ascending; ties go to the lower index; `forced` beats all others."""
    keyed = [math.inf if j == forced else float(s) for j, s in enumerate(scores)]
    order = sorted((j for j, s in enumerate(keyed) if s > -math.inf), key=lambda j: (-keyed[j], j))
    if 0 < count < len(order):
        run.gap = min(run.gap, keyed[order[count - 1]] - keyed[order[count]])
    return sorted(order[:count])


def _compress(run: _Run, layer: int, x: Tensor, start: int, freqs: list[float]) -> None:
    """Fills the layer's global entries and index keys from x [rows from start on, d]."""
    text, w, m = run.text, run.w, run.text["compress_ratios"][layer]
    name, eps = f"layers.{layer}.attn", text["rms_norm_eps"]
    content = x @ w[f"{name}.compressor.wkv.weight"].T
    cached = run.hit // m
    groups = range(cached, len(run.ids) // m)
    if m == 1:
        merged = [content[j - start] for j in groups]
    else:
        # Formed in float32, as which an unpaired last token is kept.
        content = content.float().double()
        gates = (x @ w[f"{name}.compressor.wgate.weight"].T).float().double()
        merged = []
        for j in groups:
            own = slice(j * m - start, (j + 1) * m - start)
            merged.append((torch.softmax(gates[own], dim=0) * content[own]).sum(0))
    shape = (len(groups), text["head_dim"])
    latent = rms(torch.stack(merged) if merged else x.new_zeros(shape), w[f"{name}.compressor.norm.weight"], eps)
    places = [j * m for j in groups]
    key = rms(latent @ w[f"{name}.indexer.wk.weight"].T, w[f"{name}.indexer.k_norm.weight"], eps)
    entries = round_main(rotate(latent, places, freqs), run.kv)
    keys = round_index(rotate(key, places, freqs), run.kv)
    if run.given is not None:
        old = run.given.layers[layer]
        assert old.entries is not None
        assert old.index_keys is not None
        entries = torch.cat([old.entries[:cached], entries])
        keys = torch.cat([old.index_keys[:cached], keys])
    run.layers[layer].entries, run.layers[layer].index_keys = entries, keys


def _select(run: _Run, layer: int, x: Tensor, qr: Tensor, rows: list[int], freqs: list[float]) -> None:
    """An index source scores every visible entry and keeps the best; the candidate source also keeps blocks."""
    text, w, m = run.text, run.w, run.text["compress_ratios"][layer]
    heads, dim = text["index_n_heads"], text["index_head_dim"]
    name, here = f"layers.{layer}.attn.indexer", run.layers[layer]
    keys = run.layers[_source(text["kv_source_layer_ids"], layer)].index_keys
    assert keys is not None
    q = (qr @ w[f"{name}.wq_b.weight"].T).reshape(len(rows), heads, dim)
    q = round_index(rotate(q, rows, freqs), run.kv)
    weights = x @ w[f"{name}.weights_proj.weight"].T / math.sqrt(dim) / math.sqrt(heads)
    source = text["candidate_source_layer_id"]
    for r, p in enumerate(rows):
        visible = (p + 1) // m
        scores = torch.zeros(visible, dtype=torch.float64)
        for h in range(heads):
            scores = scores + weights[r, h] * (keys[:visible] @ q[r, h]).clamp(min=0)
        here.scores[p] = scores
        if layer == source:
            here.candidates[p] = _candidates(run, scores)
        allowed = scores
        if layer > source:
            allowed = torch.full_like(scores, -torch.inf)
            kept = run.layers[source].candidates[p]
            allowed[kept] = scores[kept]
        here.selection[p] = _top(run, allowed, text["index_topk"])


def _candidates(run: _Run, scores: Tensor) -> list[int]:
    """The entries of the best blocks by maximum score; the block of the newest visible entry is always one."""
    size = run.text["candidate_block_size"]
    starts = range(0, len(scores), size)
    if not starts:
        return []
    best = torch.stack([scores[s : s + size].max() for s in starts])
    chosen = _top(run, best, run.text["candidate_topk_blocks"], forced=len(starts) - 1)
    return [j for b in chosen for j in range(b * size, min((b + 1) * size, len(scores)))]


def _source(sources: Sequence[int], layer: int) -> int:
    """The last source at or before a layer."""
    return max(s for s in sources if s <= layer)


def _attention(run: _Run, layer: int, x: Tensor, rows: list[int], windows: dict[int, range]) -> Tensor:
    """The attention sublayer of the given rows: x [rows, d] -> [rows, d]."""
    text, ratio, name = run.text, run.text["compress_ratios"][layer], f"layers.{layer}.attn"
    freqs, here = frequencies(text, ratio), run.layers[layer]
    qr, q = queries(x, rows, text, run.w, name, freqs)
    here.window[rows] = window_rows(x, rows, text, run.w, name, freqs, run.kv)
    unwritten = unwritten_reads(windows)
    assert not unwritten, f"layer {layer} reads window rows that never ran: {unwritten[:4]}"
    keys = here.window[rows]
    mask = torch.tensor([[j in windows[p] for j in rows] for p in rows])
    if ratio:
        if layer in text["index_source_layer_ids"]:
            _select(run, layer, x, qr, rows, freqs)
        else:
            here.selection = run.layers[_source(text["index_source_layer_ids"], layer)].selection
        entries = run.layers[_source(text["kv_source_layer_ids"], layer)].entries
        assert entries is not None
        chosen = torch.zeros(len(rows), len(entries), dtype=torch.bool)
        for r, p in enumerate(rows):
            chosen[r, here.selection[p]] = True
        keys, mask = torch.cat([keys, entries]), torch.cat([mask, chosen], dim=1)
    heads = attend(q, keys, mask, run.w[f"{name}.attn_sink"])
    return output(heads, rows, text, run.w, name, freqs)


def _layer(run: _Run, layer: int, state: tuple[Tensor, Tensor], windows: dict[int, range]) -> tuple[Tensor, Tensor]:
    """One layer: (streams [n, k, d], pre [n, k]) -> the same, NaN in the rows that did not run."""
    text, w, name = run.text, run.w, f"layers.{layer}"
    streams, pre = state
    rows, here = sorted(windows), run.layers[layer]
    ready = [i for i in range(len(run.ids)) if not torch.isnan(streams[i]).any()]
    before = streams.clone()
    if layer in text["engram_layer_ids"]:
        hashed = rows_of(text, layer, run.ids, run.image, run.token_map)
        before[ready] = engram(
            streams[ready], [hashed[i] for i in ready], [run.image[i] for i in ready], text, w, f"{name}.engram"
        )
    normed = torch.full_like(streams[:, 0], torch.nan)
    normed[ready] = rms(collapse(before[ready], pre[ready]), w[f"{name}.attn_norm.weight"], text["rms_norm_eps"])
    if layer in text["kv_source_layer_ids"]:
        _compress(run, layer, normed[ready[0] :], ready[0], frequencies(text, text["compress_ratios"][layer]))
    site = mix(before[rows], text, w, f"{name}.hc_attn")
    middle = expand(before[rows], _attention(run, layer, normed[rows], rows, windows), site)
    x = rms(collapse(middle, site.pre), w[f"{name}.ffn_norm.weight"], text["rms_norm_eps"])
    site = mix(middle, text, w, f"{name}.hc_ffn")
    y = moe(x, [run.image[i] for i in rows], text, w, f"{name}.ffn", text["num_experts_per_tok"])
    after, after_pre = torch.full_like(streams, torch.nan), torch.full_like(pre, torch.nan)
    after[rows], after_pre[rows] = expand(middle, y, site), site.pre
    here.rows, here.output = rows, after
    return after, after_pre


def embed(
    config: dict[str, Any], w: Weights, ids: Sequence[int], image_rows: Mapping[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """The first state: every stream holds the embedding (image positions: their given row), pre is one-hot."""
    n = config["text_config"]["hc_mult"]
    rows = [image_rows[i] if t == config["image_token_id"] else w["embed.weight"][t] for i, t in enumerate(ids)]
    streams = torch.stack([torch.stack([row] * n) for row in rows])
    pre = torch.zeros(len(rows), n, dtype=torch.float64)
    pre[:, 0] = 1
    return streams, pre


def forward(
    config: dict[str, Any],
    weights: Weights,
    token_ids: Sequence[int],
    image_rows: Mapping[int, Tensor] | None = None,
    token_map: Sequence[int] | None = None,
    *,
    kv: KvMode = "fp4",
    chunks: Sequence[int] | None = None,
    decode: int = 0,
    replay: Replay | None = None,
    whole_extend: bool | Sequence[bool] = False,
    halo: int | None = None,
    hit: int = 0,
    given: Trace | None = None,
) -> Trace:
    """Runs the model over one request.

    Args:
        config: The released config.json structure.
        weights: float64 tensors under the released names.
        token_ids: N ids.
        image_rows: Position -> embedding row [d], for every image token.
        token_map: Token id -> compressed Engram id; the identity by default.
        kv: The cache formats.
        chunks: Rows of each extend behind the hit; by default one for all.
        decode: How many last rows are decoded one by one.
        replay: The decoder replay rule.
        whole_extend: Chunks whose late layers run on all rows.
        halo: With `replay`, the late layers run on this many last rows of each extend instead of W.
        hit: Rows whose global entries come from `given`.
        given: A run over at least those rows.

    Returns:
        The trace; rows that did not run hold NaN.
    """
    text, ids = config["text_config"], list(token_ids)
    n, count = len(ids), text["num_hidden_layers"]
    parts = [n - hit - decode] if chunks is None else list(chunks)
    assert hit + sum(parts) + decode == n, "hit, chunks and decode must cover the ids"
    steps = steps_of(
        parts, text["sliding_window"], replay=replay, whole_extend=whole_extend, decode=decode, hit=hit, halo=halo
    )
    late_from = late_start(text["kv_source_layer_ids"][-1], count, replay)
    image = [t == config["image_token_id"] for t in ids]
    mapping = list(range(text["vocab_size"])) if token_map is None else list(token_map)
    run = _Run(text, weights, kv, ids, image, mapping, hit, given)
    streams, pre = embed(config, weights, ids, image_rows or {})
    streams[: steps[0].start] = torch.nan
    state = (streams, pre)
    for layer in range(count):
        shape = (n, text["head_dim"])
        blank = torch.full(shape, torch.nan, dtype=torch.float64)
        run.layers.append(LayerTrace([], state[0], torch.empty(0), blank))
        state = _layer(run, layer, state, visible_windows(steps, text["sliding_window"], late=layer >= late_from))
    return _finish(run, state, steps, late_from)


def _finish(run: _Run, state: tuple[Tensor, Tensor], steps: list[Step], late_from: int) -> Trace:
    """Final collapse, norm and head, and the counts."""
    rows = run.layers[-1].rows
    logits = torch.full((len(run.ids), run.text["vocab_size"]), torch.nan, dtype=torch.float64)
    h = rms(collapse(state[0][rows], state[1][rows]), run.w["norm.weight"], run.text["rms_norm_eps"])
    logits[rows] = h @ run.w["head.weight"].T
    projected = 0
    if late_from == run.text["kv_source_layer_ids"][-1]:
        projected = sum(step.tail - step.start for step in steps)
    work = sum(len(layer.rows) for layer in run.layers)
    return Trace(logits, run.layers, state[1], work, projected, run.gap)


def encoder_replay(
    config: dict[str, Any],
    weights: Weights,
    token_ids: Sequence[int],
    hit: int,
    image_rows: Mapping[int, Tensor] | None = None,
    token_map: Sequence[int] | None = None,
    *,
    kv: KvMode = "fp4",
    chunks: Sequence[int] | None = None,
    decode: int = 0,
    replay: Replay | None = None,
    whole_extend: bool | Sequence[bool] = False,
) -> Trace:
    """A prefix hit whose windows are gone: the last min(hit, W) cached rows run again in front of the first extend.

    Their windows reach back to hit - min(hit, W) and no further; they rewrite no global entry: those below the hit
    come from a cold run of the same ids, all rows in all layers.

    Args:
        config: The released config.json structure.
        weights: float64 tensors under the released names.
        token_ids: N ids, hit included.
        hit: Cached rows; a multiple of every compression ratio.
        image_rows: As in `forward`.
        token_map: As in `forward`.
        kv: The cache formats.
        chunks: Rows of each extend behind the hit.
        decode: How many last rows are decoded one by one.
        replay: The decoder replay rule; its extend counts the replayed rows too.
        whole_extend: Chunks whose late layers run on all rows.

    Returns:
        The trace; rows before the replay hold NaN.
    """
    assert all(hit % m == 0 for m in config["text_config"]["compress_ratios"] if m), "a hit ends on whole groups"
    cold = forward(config, weights, token_ids, image_rows, token_map, kv=kv)
    return forward(
        config,
        weights,
        token_ids,
        image_rows,
        token_map,
        kv=kv,
        chunks=chunks,
        decode=decode,
        replay=replay,
        whole_extend=whole_extend,
        hit=hit,
        given=cold,
    )

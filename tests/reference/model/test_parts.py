from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_workers.reference.model import indexer, rope
from epd_workers.reference.model.attention import attend
from epd_workers.reference.model.config import RELEASED, Config
from epd_workers.reference.model.hyper import collapse, spread
from tests.reference.model import oracle_parts as oracle
from tests.support.reference.configs import configs, random_weights, tiny
from tests.support.reference.trunk import load

if TYPE_CHECKING:
    from epd_workers.reference.model.layer import Layer

ROWS = 6


class Part:
    """One layer of a random model, with its weights under released names."""

    def __init__(self, data: dict[str, Any], seed: int) -> None:
        self.text = data["text_config"]
        self.weights = random_weights(data, seed)
        self.model = load(Config.from_json(data), self.weights)
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def layer(self, index: int) -> Layer:
        return self.model.stack[index]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


some = settings(max_examples=12)


@some
@given(configs(), st.integers(0, 1000))
@torch.no_grad()
def test_hyper_connections(data: dict[str, Any], seed: int) -> None:
    part = Part(data, seed)
    streams, y = (
        part.draw(ROWS, part.text["hc_mult"], part.text["hidden_size"]),
        part.draw(ROWS, part.text["hidden_size"]),
    )
    for site in ("attn", "ffn"):
        ours = getattr(part.layer(1), f"hc_{site}")(streams)
        theirs = oracle.mix(streams, part.text, part.weights, f"layers.1.hc_{site}")
        close(ours.pre, theirs.pre)
        close(ours.post, theirs.post)
        close(ours.comb, theirs.carry)
        close(collapse(streams, ours.pre), oracle.collapse(streams, theirs.pre))
        close(spread(streams, y, ours), oracle.expand(streams, y, theirs))


def test_learning_changes_no_value_of_a_hyper_connection() -> None:
    part = Part(tiny(), 3)
    streams = part.draw(ROWS, part.text["hc_mult"], part.text["hidden_size"])
    site = part.layer(0).hc_attn
    learnt = site(streams)
    with torch.no_grad():
        served = site(streams)
    for ours, theirs in zip(learnt, served, strict=True):
        close(ours.detach(), theirs)
    learnt.comb.square().sum().backward()
    assert site.fn.grad is not None
    assert site.fn.grad.abs().sum() > 0


@some
@given(configs(), st.integers(0, 1000), st.integers(0, 100_000))
@torch.no_grad()
def test_attention_s_projections(data: dict[str, Any], seed: int, start: int) -> None:
    part = Part(data, seed)
    positions = list(range(start, start + ROWS))
    x = part.draw(ROWS, part.text["hidden_size"])
    for index in (0, part.text["num_hidden_layers"] - 1):
        layer, name = part.layer(index), f"layers.{index}.attn"
        ratio = part.text["compress_ratios"][index]
        theirs_f = oracle.frequencies(part.text, ratio)
        frequency = rope.layer_frequencies(part.model.config.text, ratio)
        close(frequency, torch.tensor(theirs_f, dtype=torch.float64))
        turn = rope.rotation(torch.tensor(positions), frequency, torch.float64)
        latent, query = oracle.queries(x, positions, part.text, part.weights, name, theirs_f)
        close(layer.attn.query_latent(x), latent)
        close(layer.attn.query(latent, turn), query)
        entry = oracle.window_rows(x, positions, part.text, part.weights, name, theirs_f, "exact")
        close(layer.attn.entry(x, turn), entry)
        heads = part.draw(ROWS, part.text["num_attention_heads"], part.text["head_dim"])
        close(layer.attn.output(heads, turn), oracle.output(heads, positions, part.text, part.weights, name, theirs_f))


def test_released_yarn_turns_between_pairs_15_and_25() -> None:
    text = RELEASED.text
    plain = rope.frequencies(64, text.compress_rope_theta, None)
    scaled = rope.layer_frequencies(text, 1)
    assert torch.equal(scaled[:16], plain[:16])
    assert torch.equal(scaled[25:], plain[25:] / 16)
    assert bool((scaled[16:25] < plain[16:25]).all())
    assert torch.equal(rope.layer_frequencies(text, 0), rope.frequencies(64, 10000.0, None))


@some
@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 18))
@torch.no_grad()
def test_softmax_with_a_sink(seed: int, heads: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    query, keys, sink = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((2, ROWS, heads, 16), (2, count, 16), (heads,))
    )
    seen = torch.rand(2, ROWS, count, generator=generator) < 0.6
    ours = attend(query, keys, seen, sink)
    for text in range(2):
        close(ours[text], oracle.attend(query[text], keys[text], seen[text], sink))


@torch.no_grad()
def test_a_row_that_sees_nothing_gets_zero_and_a_huge_sink_swallows_all() -> None:
    query, keys = torch.randn(1, 2, 3, 16).double(), torch.randn(1, 4, 16).double()
    blind = attend(query, keys, torch.zeros(1, 2, 4, dtype=torch.bool), torch.zeros(3).double())
    assert torch.equal(blind, torch.zeros(1, 2, 3, 16).double())
    for sink in (1e4, -1e4):
        out = attend(query, keys, torch.ones(1, 2, 4, dtype=torch.bool), torch.full((3,), sink).double())
        assert torch.isfinite(out).all()
        assert bool((out == 0).all()) == (sink > 0)


@some
@given(configs(), st.integers(0, 1000))
@torch.no_grad()
def test_experts(data: dict[str, Any], seed: int) -> None:
    part = Part(data, seed)
    x = part.draw(ROWS, part.text["hidden_size"])
    image = [i % 3 == 0 for i in range(ROWS)]
    theirs = oracle.moe(x, image, part.text, part.weights, "layers.0.ffn", part.text["num_experts_per_tok"])
    close(part.layer(0).ffn(x, torch.tensor(image)), theirs)


@torch.no_grad()
def test_routing_weights_come_from_the_score_and_not_from_the_bias() -> None:
    part = Part(tiny(experts=(4, 2, 32)), 1)
    gate = part.layer(0).ffn.gate
    x = part.draw(ROWS, part.text["hidden_size"])
    gate.bias.zero_()
    weights, chosen = gate(x, None)
    close(weights.sum(-1), torch.full((ROWS,), 1.5, dtype=torch.float64))
    gate.bias[0] = 100.0
    forced, picks = gate(x, None)
    assert bool((picks == 0).any(-1).all())
    assert bool((forced <= 1.5).all())
    assert not torch.equal(picks, chosen)


@torch.no_grad()
def test_index_scores() -> None:
    generator = torch.Generator().manual_seed(1)
    query, weights, keys = (
        torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((5, 3, 8), (5, 3), (7, 8))
    )
    ours = indexer.scores(query, weights, keys)
    for r in range(5):
        for j in range(7):
            theirs = sum(float(weights[r, h]) * max(0.0, float(query[r, h] @ keys[j])) for h in range(3))
            assert float(ours[r, j]) == pytest.approx(theirs, rel=1e-12, abs=1e-12)


@torch.no_grad()
def test_a_pair_is_mixed_channel_by_channel_and_any_split_gives_the_same() -> None:
    part = Part(tiny(encoder=((2, 1),)), 7)
    source = part.text["kv_source_layer_ids"][0]
    compressor = part.layer(source).attn.compressor
    assert compressor is not None
    x = part.draw(4, part.text["hidden_size"])
    pairs = compressor.project(x).unflatten(0, (2, 2))
    name = f"layers.{source}.attn.compressor"
    content, gate = (x @ part.weights[f"{name}.{matrix}.weight"].T for matrix in ("wkv", "wgate"))
    for j in range(2):
        shares = gate[2 * j : 2 * j + 2].exp()
        mixed = (content[2 * j : 2 * j + 2] * shares / shares.sum(0)).sum(0)
        theirs = oracle.rms(mixed, part.weights[f"{name}.norm.weight"], part.text["rms_norm_eps"])
        torch.testing.assert_close(compressor.pool(pairs)[j], theirs, rtol=1e-6, atol=1e-6)
    apart = torch.cat((compressor.project(x[:3]), compressor.project(x[3:]))).unflatten(0, (2, 2))
    assert torch.equal(compressor.pool(apart), compressor.pool(pairs))

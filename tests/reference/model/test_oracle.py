from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.model.oracle import Replay, Trace, draft, encoder_replay, forward
from tests.reference.model.oracle_rows import late_start, steps_of, unwritten_reads, visible_windows
from tests.support.reference.configs import Prompt, configs, random_prompt, random_weights, tiny

if TYPE_CHECKING:
    from tests.reference.model import oracle_formats as formats

POLICIES: list[Replay] = ["0.5.23", "dsv41-37ae292e"]
TINY = tiny()
WEIGHTS = random_weights(TINY, 0)
PROMPT = random_prompt(TINY, 0, 48, (range(9, 15),))


def run(config: dict[str, Any], weights: dict[str, torch.Tensor], prompt: Prompt, **options: Any) -> Trace:
    return forward(config, weights, prompt.token_ids, prompt.image_rows, prompt.token_map, **options)


# --- the whole model


@settings(max_examples=12)
@given(configs(), st.integers(0, 1000), st.integers(2, 29))
def test_causality(config: dict[str, Any], seed: int, changed: int) -> None:
    weights, prompt = random_weights(config, seed), random_prompt(config, seed, 30, (range(5, 9),))
    ids = list(prompt.token_ids)
    ids[changed] = (ids[changed] + 1) % 90
    before, after = run(config, weights, prompt), run(config, weights, Prompt(ids, prompt.image_rows, prompt.token_map))
    torch.testing.assert_close(after.logits[:changed], before.logits[:changed], rtol=1e-9, atol=1e-9)
    assert float((after.logits[changed] - before.logits[changed]).abs().max()) > 1e-6
    for old, new in zip(before.layers, after.layers, strict=True):
        assert {p: s for p, s in old.selection.items() if p < changed} == {
            p: s for p, s in new.selection.items() if p < changed
        }


def test_window_only_layers_see_a_window_each() -> None:
    # Two window-only layers of 8 (and an Engram of 4) in front: output row p depends on no row before p - 2 * 7 - 3.
    trace = run(TINY, WEIGHTS, PROMPT)
    ids = list(PROMPT.token_ids)
    ids[20] = (ids[20] + 1) % 90
    changed = run(TINY, WEIGHTS, Prompt(ids, PROMPT.image_rows, PROMPT.token_map))
    first, second = ((trace.layers[i].output - changed.layers[i].output).abs().amax((1, 2)) > 1e-12 for i in range(2))
    assert first.nonzero().flatten().tolist() == list(range(20, 28))
    assert int(second.nonzero().max()) <= 20 + 7 + 7 + 3
    assert not (trace.logits[40] == changed.logits[40]).all()  # global entries reach further


def test_selections_and_candidates() -> None:
    text, trace = TINY["text_config"], run(TINY, WEIGHTS, PROMPT)
    source = text["candidate_source_layer_id"]
    for layer, here in enumerate(trace.layers):
        m = text["compress_ratios"][layer]
        for p, chosen in here.selection.items():
            assert chosen == sorted(set(chosen))
            assert all(j < (p + 1) // m for j in chosen)
            if layer <= source:
                assert len(chosen) == min(text["index_topk"], (p + 1) // m)
    blocks, size = text["candidate_topk_blocks"], text["candidate_block_size"]
    for p, kept in trace.layers[source].candidates.items():
        assert p in kept
        assert len({j // size for j in kept}) == min(blocks, p // size + 1)
        reindexed = trace.layers[text["index_source_layer_ids"][-1]].selection[p]
        assert set(reindexed) <= set(kept)
        assert len(reindexed) == min(text["index_topk"], len(kept))
    assert trace.layers[3].selection == trace.layers[2].selection
    assert trace.tightest_choice > 0


@pytest.mark.parametrize("kv", ["bf16", "exact"])
def test_cache_formats_change_little(kv: formats.KvMode) -> None:
    a, b = run(TINY, WEIGHTS, PROMPT, kv="fp4").layers[0], run(TINY, WEIGHTS, PROMPT, kv=kv).layers[0]
    assert 0 < float((a.window - b.window).norm() / b.window.norm()) < 0.05


def test_image_positions_route_by_their_own_bias() -> None:
    weights = dict(WEIGHTS)
    weights["layers.0.ffn.gate.bias_vl"] = (
        WEIGHTS["layers.0.ffn.gate.bias_vl"] + 50 * torch.eye(4, dtype=torch.float64)[0]
    )
    changed = run(TINY, weights, PROMPT).layers[0].output - run(TINY, WEIGHTS, PROMPT).layers[0].output
    moved = set((changed.abs().amax((1, 2)) > 0).nonzero().flatten().tolist())
    assert moved
    assert moved <= set(PROMPT.image_rows)


@settings(max_examples=8)
@given(configs(), st.integers(0, 1000), st.integers(1, 39))
def test_chunks_and_decode_change_nothing_without_replay(config: dict[str, Any], seed: int, cut: int) -> None:
    weights, prompt = random_weights(config, seed), random_prompt(config, seed, 40)
    whole = run(config, weights, prompt)
    assert torch.equal(run(config, weights, prompt, chunks=[cut], decode=40 - cut).logits, whole.logits)


# --- replay


@settings(max_examples=10)
@given(configs(), st.integers(0, 1000), st.sampled_from(POLICIES), st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_replay_of_any_config(config: dict[str, Any], seed: int, policy: Replay, chunks: list[int]) -> None:
    weights, length = random_weights(config, seed), sum(chunks) + 2
    prompt = random_prompt(config, seed, length)
    full, cut = run(config, weights, prompt), run(config, weights, prompt, replay=policy, chunks=chunks, decode=2)
    source, window = config["text_config"]["kv_source_layer_ids"][-1], config["text_config"]["sliding_window"]
    for layer in range(source):
        assert torch.equal(cut.layers[layer].output, full.layers[layer].output)
    tails = sum(min(window, chunk) for chunk in chunks) + 2
    late = late_start(source, len(cut.layers), policy)
    assert [len(layer.rows) for layer in cut.layers] == [length] * late + [tails] * (len(cut.layers) - late)
    assert cut.rows_x_layers + (length - tails) * (len(cut.layers) - late) == full.rows_x_layers
    assert torch.isfinite(cut.logits[cut.layers[-1].rows]).all()
    if length > chunks[0]:
        first = [p for p in cut.layers[-1].rows if p < chunks[0]]
        assert first[-1] == chunks[0] - 1


@settings(max_examples=6)
@given(configs(), st.integers(0, 1000), st.integers(1, 12), st.sampled_from([None, *POLICIES]))
def test_encoder_replay_of_any_config(config: dict[str, Any], seed: int, groups: int, policy: Replay | None) -> None:
    weights, prompt, hit = random_weights(config, seed), random_prompt(config, seed, 36), 2 * groups
    options = (weights, prompt.token_ids, hit, prompt.image_rows, prompt.token_map)
    warm = encoder_replay(config, *options, chunks=[36 - hit - 4], decode=4, replay=policy)
    again = min(hit, config["text_config"]["sliding_window"])
    assert warm.layers[0].rows == list(range(hit - again, 36))
    assert torch.isfinite(warm.logits[-5:]).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_replay_counts_rows_and_keeps_the_early_layers(policy: Replay) -> None:
    full, cut = run(TINY, WEIGHTS, PROMPT), run(TINY, WEIGHTS, PROMPT, replay=policy)
    source, count, window, n = TINY["text_config"]["kv_source_layer_ids"][-1], 6, 8, 48
    split = source if policy == "0.5.23" else source + 1
    assert cut.rows_x_layers == split * n + (count - split) * window
    assert full.rows_x_layers == count * n
    assert cut.projected_rows == (n - window if policy == "0.5.23" else 0)
    for layer in range(split):
        assert torch.equal(cut.layers[layer].output, full.layers[layer].output)
    entries, again = full.layers[source].entries, cut.layers[source].entries
    assert entries is not None
    assert again is not None
    assert torch.equal(entries, again)
    assert cut.layers[-1].rows == list(range(n - window, n))
    assert torch.isfinite(cut.logits[-window:]).all()
    assert torch.isnan(cut.logits[:-window]).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_replay_of_one_window_is_exact_and_whole_extends_too(policy: Replay) -> None:
    full = run(TINY, WEIGHTS, PROMPT)
    whole = run(TINY, WEIGHTS, PROMPT, replay=policy, chunks=[20, 28], whole_extend=True)
    torch.testing.assert_close(whole.logits, full.logits, rtol=1e-9, atol=1e-9)
    later = run(
        TINY, WEIGHTS, PROMPT, replay=policy, chunks=[8, 1, 3, 12], whole_extend=[False, *[True] * 3], decode=24
    )
    torch.testing.assert_close(later.logits, full.logits, rtol=1e-9, atol=1e-9)


def test_short_extends_tell_the_floors_apart() -> None:
    full = run(TINY, WEIGHTS, PROMPT)
    new, old = (run(TINY, WEIGHTS, PROMPT, replay=policy, chunks=[8, 1], decode=39) for policy in POLICIES)
    torch.testing.assert_close(new.logits[8], full.logits[8], rtol=1e-9, atol=1e-9)
    assert float((old.logits[8] - full.logits[8]).abs().max()) > 1e-4


@pytest.mark.parametrize("policy", POLICIES)
def test_halo(policy: Replay) -> None:
    # Scores well below 1 spread the attention, so that the one row that a shorter tail lacks shows at its end.
    config = tiny(decoder=(2, 1), window=5)
    weights, prompt = random_weights(config, 4, sharpness=0.3), random_prompt(config, 4, 60)
    layers, window = (3, 5) if policy == "0.5.23" else (2, 5)
    halo = window + (layers - 1) * (window - 1)
    full = run(config, weights, prompt, kv="exact")
    exact, short = (run(config, weights, prompt, kv="exact", replay=policy, halo=h) for h in (halo, halo - 1))

    def error(trace: Trace) -> float:
        return float((trace.logits[-1] - full.logits[-1]).abs().max())

    assert error(exact) < 1e-11
    assert error(short) > 1e-8
    # Every layer's trailing window, which is what decoding reads next, is exact too.
    for a, b in zip(exact.layers, full.layers, strict=True):
        torch.testing.assert_close(a.window[-window:], b.window[-window:], rtol=1e-11, atol=1e-11)
    approximate = run(config, weights, prompt, kv="exact", replay=policy)
    assert error(approximate) > error(short)


@pytest.mark.parametrize(("policy", "split", "work"), [("0.5.23", 20, 166_400), ("dsv41-37ae292e", 21, 174_464)])
def test_work_of_the_released_sizes(policy: Replay, split: int, work: int) -> None:
    steps = steps_of([8192], 128, replay=policy)
    early, late = (len(visible_windows(steps, 128, late=half)) for half in (False, True))
    assert late_start(20, 40, policy) == split
    assert split * early + (40 - split) * late == work


def test_encoder_replay() -> None:
    full = run(TINY, WEIGHTS, PROMPT)
    hit = 24
    warm = encoder_replay(TINY, WEIGHTS, PROMPT.token_ids, hit, PROMPT.image_rows, PROMPT.token_map)
    assert warm.rows_x_layers == 6 * (24 + 8)
    assert warm.layers[0].rows == list(range(16, 48))
    for layer in (2, 4):
        old, new = full.layers[layer], warm.layers[layer]
        assert old.entries is not None
        assert new.entries is not None
        cached = hit // TINY["text_config"]["compress_ratios"][layer]
        assert torch.equal(new.entries[:cached], old.entries[:cached])
        assert new.entries.shape == old.entries.shape
    # The first layer's rows behind the replay have their full windows; the replayed ones do not.
    torch.testing.assert_close(warm.layers[0].output[23:], full.layers[0].output[23:], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(warm.layers[0].output[16], full.layers[0].output[16])
    assert not torch.allclose(warm.logits[-1], full.logits[-1], rtol=1e-9, atol=1e-9)


def test_a_hit_within_one_window_replays_exactly() -> None:
    full = run(TINY, WEIGHTS, PROMPT)
    warm = encoder_replay(
        TINY, WEIGHTS, PROMPT.token_ids, 8, PROMPT.image_rows, PROMPT.token_map, chunks=[30], decode=10
    )
    torch.testing.assert_close(warm.logits, full.logits, rtol=1e-9, atol=1e-9)


def test_both_replays() -> None:
    warm = encoder_replay(
        TINY,
        WEIGHTS,
        PROMPT.token_ids,
        24,
        PROMPT.image_rows,
        PROMPT.token_map,
        chunks=[3, 9],
        decode=12,
        replay="0.5.23",
    )
    # The first extend is 8 replayed rows and 3 new ones, of which the last 8 reach the late layers.
    assert warm.layers[-1].rows == [*range(19, 27), *range(28, 36), *range(36, 48)]
    assert warm.layers[0].rows == list(range(16, 48))


def test_random_chunks_read_no_unwritten_row() -> None:
    window, differ = 8, 0
    generator = torch.Generator().manual_seed(5)
    draws = torch.randint(0, 2**31, (20_000, 12), generator=generator).tolist()
    for draw in draws:
        chunks = [1 + value % (3 + draw[9] % 24) for value in draw[: 1 + draw[8] % 6]]
        flags = [draw[10] % 3 == 0 and value % 2 == 0 for value in draw[: len(chunks)]]
        seen = []
        for policy in POLICIES:
            steps = steps_of(chunks, window, replay=policy, whole_extend=flags, decode=draw[11] % 4)
            seen.append(visible_windows(steps, window, late=True))
            assert not unwritten_reads(seen[-1])
        assert seen[0].keys() == seen[1].keys()
        differ += seen[0] != seen[1]
    assert differ > 1000


def test_plain_windows_over_trimmed_rows_would_read_unwritten_rows() -> None:
    steps = steps_of([20, 3], 8, replay="0.5.23")
    plain = {i: range(max(0, i - 7), i + 1) for i in visible_windows(steps, 8, late=True)}
    assert unwritten_reads(plain)


# --- draft


@pytest.mark.parametrize("stages", [1, 2])
def test_draft(stages: int) -> None:
    config = tiny(stages=stages)
    weights = random_weights(config, 7)
    trace = run(config, weights, PROMPT)
    block = draft(config, weights, trace, 40, 3)
    assert block.ids == block.logits.argmax(-1).tolist()
    assert block.confidence.shape == (5,)
    # Only the ring reaches back: a change outside it moves nothing, in it everything.
    target = config["text_config"]["dspark_target_layer_ids"][0]
    for position, moves in ((40 - 8, False), (40 - 7, True), (40, True), (41, False)):
        inputs = trace.layers[target].inputs
        trace.layers[target].inputs = inputs.clone()
        trace.layers[target].inputs[position] += 1
        other = draft(config, weights, trace, 40, 3)
        trace.layers[target].inputs = inputs
        assert (not torch.equal(other.logits, block.logits)) is moves
    assert not torch.equal(draft(config, weights, trace, 40, 4).logits, block.logits)


def test_draft_after_decoder_replay_uses_the_tail_rows() -> None:
    trace = run(TINY, WEIGHTS, PROMPT, replay="0.5.23")
    assert torch.isfinite(draft(TINY, WEIGHTS, trace, 47, 1).logits).all()
    with pytest.raises(AssertionError, match="never ran"):
        draft(TINY, WEIGHTS, trace, 40, 1)

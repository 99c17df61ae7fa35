from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epd_kernels.dispatch import TORCH
from epd_kernels.formats.reference import unpack
from epd_kernels.tail_layout.policy import Policy
from epd_workers.reference.model import dense
from epd_workers.reference.model.config import RELEASED
from epd_workers.reference.model.forward import Forward
from epd_workers.reference.model.replay import PRESETS, Preset, halo, tail_rows
from tests.reference.model import oracle
from tests.support.reference.configs import configs, tiny
from tests.support.reference.rows import slots_of
from tests.support.reference.trunk import PAGE, Request, Trunk

N = 40
POLICIES = sorted(PRESETS)
SAFE = 1e-9  # a closer choice may fall either way by rounding alone


def expect(trunk: Trunk, **options: Any) -> oracle.Trace:
    prompt = trunk.prompt
    kv = options.pop("kv", trunk.cache_type)
    return oracle.forward(
        trunk.data, trunk.weights, prompt.token_ids, prompt.image_rows, prompt.token_map, kv=kv, **options
    )


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Equal but for the rounding to float32 that logits leave with."""
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


cuts = st.lists(st.integers(1, N - 1), max_size=4, unique=True).map(
    lambda cuts: [b - a for a, b in pairwise([0, *sorted(cuts), N])]
)


@settings(max_examples=25)
@given(configs(), st.integers(0, 1000), st.sampled_from(["fp4", "bf16"]), st.sampled_from([(), (range(5, 14),)]))
def test_the_whole_model_equals_the_oracle(
    data: dict[str, Any], seed: int, kind: Any, images: tuple[range, ...]
) -> None:
    trunk = Trunk(data, seed, N, images, kind)
    trace = expect(trunk)
    assume(trace.tightest_choice > SAFE)
    same(trunk.run([N], all_logits=True).logits[0], trace.logits)


@settings(max_examples=15)
@given(configs(), st.integers(0, 1000), cuts, st.integers(0, 5))
def test_any_split_equals_the_whole(data: dict[str, Any], seed: int, chunks: list[int], decoded: int) -> None:
    trunk = Trunk(data, seed, N)
    trace = expect(trunk)
    assume(trace.tightest_choice > SAFE)
    decoded = min(decoded, chunks[-1] - 1)
    ours = trunk.run([*chunks[:-1], chunks[-1] - decoded], decode=decoded, all_logits=True)
    same(torch.cat(ours.logits), trace.logits)


@settings(max_examples=20)
@given(configs(), st.integers(0, 1000), cuts, st.sampled_from(POLICIES), st.integers(0, 3))
def test_replay_equals_the_oracle_at_the_same_boundaries(
    data: dict[str, Any], seed: int, chunks: list[int], policy: Any, decoded: int
) -> None:
    trunk = Trunk(data, seed, N)
    decoded = min(decoded, chunks[-1] - 1)
    chunks = [*chunks[:-1], chunks[-1] - decoded]
    trace = expect(trunk, chunks=chunks, decode=decoded, replay=policy)
    assume(trace.tightest_choice > SAFE)
    ours = trunk.run(chunks, decode=decoded, replay=policy)
    ends = torch.tensor([*torch.tensor(chunks).cumsum(0).tolist(), *range(N - decoded + 1, N + 1)]) - 1
    same(torch.cat([rows[-1:] for rows in ours.logits]), trace.logits[ends])
    assert ours.work.encoder + ours.work.decoder == trace.rows_x_layers
    assert ours.work.decoder + ours.work.skipped == N * (len(trunk.config.text.plans) - trunk.config.text.split)


@settings(max_examples=10)
@given(configs(), st.integers(0, 1000), st.integers(1, 4), st.sampled_from([None, *POLICIES]))
def test_encoder_replay_equals_the_oracle(data: dict[str, Any], seed: int, pages: int, policy: Any) -> None:
    trunk, hit = Trunk(data, seed, N), 8 * pages
    prompt = trunk.prompt
    trace = oracle.encoder_replay(
        data, trunk.weights, prompt.token_ids, hit, prompt.image_rows, prompt.token_map, replay=policy
    )
    assume(trace.tightest_choice > SAFE)
    request = trunk.run([hit])
    request.sequence.release_windows(hit)
    before = [trunk.pool.main_page(o.layer, p).clone() for o in trunk.pool.geometry.owners for p in range(pages)]
    replayed = min(hit, trunk.config.text.sliding_window)
    request.sequence.reserve_windows(hit - replayed)
    out = trunk.bind(policy)([trunk.extend(request, N, replayed=replayed)])
    same(out.logits[0][-1], trace.logits[-1])
    after = [trunk.pool.main_page(o.layer, p) for o in trunk.pool.geometry.owners for p in range(pages)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert out.work.replayed == replayed


@settings(max_examples=10)
@given(configs(), st.integers(0, 1000), st.lists(cuts, min_size=2, max_size=4), st.sampled_from([None, *POLICIES]))
def test_a_ragged_batch_equals_its_requests_alone(
    data: dict[str, Any], seed: int, splits: list[list[int]], policy: Any
) -> None:
    trunk = Trunk(data, seed, N)
    forward = trunk.bind(policy)
    requests = [trunk.begin() for _ in splits]
    left = [list(chunks) for chunks in splits]
    while any(left):
        rows: list[tuple[Request, int]] = [
            (request, chunks.pop(0)) for request, chunks in zip(requests, left, strict=True) if chunks
        ]
        out = forward([trunk.extend(request, request.sequence.length + count) for request, count in rows])
        for (request, _), logits in zip(rows, out.logits, strict=True):
            request.logits.append(logits)
    for request, chunks in zip(requests, splits, strict=True):
        alone = trunk.run(chunks, replay=policy)
        for ours, theirs in zip(request.logits, alone.logits, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_early_layers_do_not_notice_replay(policy: str) -> None:
    trunk = Trunk(tiny(decoder=(2, 1)), 3, N)
    text = trunk.config.text
    pages = {}
    for name in (None, policy):
        request = trunk.run([17, N - 17], replay=name)
        positions = torch.arange(N)
        early = [
            unpack(trunk.pool.window(layer), slots_of(request.sequence.window_table, positions, PAGE), torch.float64)
            for layer in range(text.split + (policy != "0.5.23"))
        ]
        owners = [
            unpack(
                trunk.pool.main(o.layer),
                slots_of(request.sequence.page_table, torch.arange(N // o.ratio), PAGE // o.ratio),
                torch.float64,
            )
            for o in trunk.pool.geometry.owners
        ]
        pages[name] = [*early, *owners]
    assert all(torch.equal(a, b) for a, b in zip(pages[None], pages[policy], strict=True))


def late_windows(trunk: Trunk, rule: Preset | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The last window of every layer behind the split, and the last row's logits."""
    forward, request = Forward(trunk.model, trunk.hash, trunk.pool, rule, TORCH), trunk.begin()
    logits = forward([trunk.extend(request, trunk.length)]).logits[0][-1]
    text = trunk.config.text
    positions = torch.arange(trunk.length - text.sliding_window, trunk.length)
    slots = slots_of(request.sequence.window_table, positions, PAGE)
    layers = range(text.split, text.num_hidden_layers)
    return torch.stack([unpack(trunk.pool.window(i), slots, torch.float64) for i in layers]), logits


@pytest.mark.parametrize("policy", POLICIES)
def test_a_halo_makes_the_tail_exact_and_one_row_less_does_not(policy: str) -> None:
    # Attention that averages spreads a change of one row to every row that sees it.
    trunk = Trunk(tiny(decoder=(2, 1), window=4), 11, 40, cache_type="bf16", sharpness=0.3)
    text = trunk.config.text
    count = text.num_hidden_layers - PRESETS[policy].first_late(text)
    rows = halo(count, text.sliding_window)
    assert rows < trunk.length
    whole, exact = late_windows(trunk, None)
    errors = []
    for tail in (rows, rows - 1, text.sliding_window):
        rule = replace(PRESETS[policy], rows=tail, policy=Policy.TAIL)
        windows, logits = late_windows(trunk, rule)
        errors.append((float((windows - whole).abs().max()), float((logits - exact).abs().max())))
    assert errors[0] == (0.0, 0.0)
    assert errors[1][0] > 0
    assert errors[2][1] > 0


def test_the_released_halos() -> None:
    assert halo(20, 128) == 2541
    assert halo(19, 128) == 2414


@pytest.mark.parametrize(
    ("policy", "rows", "run"),
    [("0.5.23", 8192, 166_400), ("dsv41-37ae292e", 8192, 174_464), ("0.5.23", 128, 5120), ("0.5.23", 129, 5140),
     ("dsv41-37ae292e", 127, 5080), ("0.5.23", 1, 40)],
)  # fmt: skip
def test_released_layers_run_this_many_rows(policy: str, rows: int, run: int) -> None:
    text, preset = RELEASED.text, PRESETS[policy]
    early = preset.first_late(text)
    tail = tail_rows(preset, rows, text.sliding_window, whole=False)
    assert early * rows + (text.num_hidden_layers - early) * tail == run
    assert tail_rows(preset, rows, text.sliding_window, whole=True) == rows
    assert tail_rows(None, rows, text.sliding_window, whole=False) == rows


@pytest.mark.parametrize("kind", ["fp4", "bf16"])
def test_training_s_forward_equals_the_oracle(kind: Any) -> None:
    data = tiny()
    trunk = Trunk(data, 5, N, (range(3, 12),))
    trace = expect(trunk, kv="fp4" if kind == "fp4" else "exact")
    ids = torch.tensor(trunk.prompt.token_ids)
    rows = trunk.model.embed(ids)
    for at, row in trunk.prompt.image_rows.items():
        rows[at] = row
    image = ids == trunk.config.image_token_id
    assert trunk.hash is not None
    columns = trunk.hash.whole(ids[None], image[None])
    layers = trunk.config.text.engram_layer_ids
    options = dense.Options(dense.Selection.TOP, rounded=kind == "fp4")
    out = dense.run(trunk.model, rows[None], image[None], dict(zip(layers, columns, strict=True)), options)
    torch.testing.assert_close(out.logits[0].detach(), trace.logits, rtol=1e-6, atol=1e-6)

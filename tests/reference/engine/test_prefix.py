"""What requests leave for each other, and what is reported about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from epd_workers.reference.engine.job import Job
from epd_workers.reference.engine.prefix_key import pictures, prefix_key
from epd_workers.reference.engine.request import Prompt, Step
from epd_workers.reference.engine.scheduler import Scheduler
from epd_workers.reference.model.replay import PRESETS, Work
from epd_workers.reference.serving.cache_report import CacheReport
from tests.support.reference.engines import (
    SHORT,
    answer,
    collect,
    limits,
    memory_of,
    picture,
    started,
    text,
)
from tests.support.reference.small import LAYERS, SPLIT, WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_workers.reference.engine.engine import Engine
    from epd_workers.reference.engine.job import Event, Piece
    from epd_workers.reference.model.interface import Extend, Output
    from epd_workers.reference.model.loaded import LoadedModel

ONE = replace(SHORT, max_new_tokens=1)


async def hit(engine: Engine, prompt: Prompt, **sampling: Any) -> int:
    """Tokens that this request found."""
    before = engine.load()
    await answer(engine, prompt, replace(ONE, **sampling))
    after = engine.load()
    tokens = after.hit_tokens - before.hit_tokens
    assert after.hits - before.hits == (tokens > 0)
    assert after.prompt_tokens - before.prompt_tokens == len(prompt.token_ids) - tokens
    return tokens


async def test_hits_end_at_pages_and_leave_a_token_to_run(model: LoadedModel) -> None:
    ids = text(40)
    async with started(model, prefix_cache=True) as engine:
        assert await hit(engine, Prompt(ids)) == 0
        assert await hit(engine, Prompt(ids)) == 36
        assert await hit(engine, Prompt(ids[:39])) == 36
        assert await hit(engine, Prompt(ids[:22])) == 20
        assert await hit(engine, Prompt([*ids, 1, 2])) == 40
        assert await hit(engine, Prompt([1, *ids])) == 0
        load = engine.load()
        assert (load.lookups, load.hits, load.hit_tokens) == (6, 4, 132)
        assert load.cached_tokens == 4 * (10 + 10)
        assert (load.evicted_pages, load.evicted_window_pages) == (0, 0)


async def test_an_answer_is_found_by_the_next_turn(model: LoadedModel) -> None:
    prompt = Prompt(text(10))
    async with started(model, prefix_cache=True) as engine:
        steps = await answer(engine, prompt, replace(SHORT, max_new_tokens=20))
        tokens = [step.token_id for step in steps]
        assert await hit(engine, Prompt([*prompt.token_ids, *tokens, *text(5)])) == 28  # the last token has not run


async def test_a_resumed_answer_is_found_where_its_windows_are_complete(model: LoadedModel) -> None:
    prompt, pieces = Prompt(text(30)), list["Piece"]()
    async with started(model) as prefill, started(model, prefix_cache=True) as decode:
        handover = await prefill.prefill("p", prompt, replace(SHORT, max_new_tokens=20), pieces.append)
        steps = await collect(decode.resume("d", prompt, replace(SHORT, max_new_tokens=20), handover, pieces))
        tokens = [step.token_id for step in steps]
        assert await hit(decode, Prompt([*prompt.token_ids, *tokens[:18], 7])) == 48
        assert await hit(decode, Prompt([*prompt.token_ids, *tokens[:2], 7])) == 0


async def test_pictures_are_told_apart_by_their_rows(model: LoadedModel) -> None:
    ids = [*text(6), *[258] * 5, *text(9)]
    one, same, other = (Prompt(ids, [picture(6, 5, seed)]) for seed in (1, 1, 2))
    async with started(model, prefix_cache=True) as engine:
        assert await hit(engine, one) == 0
        assert await hit(engine, same) == 16
        assert await hit(engine, other) == 4


def test_the_key_ends_before_a_picture_that_is_not_here() -> None:
    ids = [5, 258, 258, 6, 258, 7]
    first, second = picture(1, 2, 1), picture(4, 1, 2)
    shown = pictures(Prompt(ids, [first, second]))
    whole = prefix_key(ids, shown, 258)
    assert [whole[at] for at in (0, 3, 5)] == [5, 6, 7]
    assert whole[1] == whole[2] < 0 > whole[4] != whole[1]
    assert prefix_key(ids, shown[:1], 258) == whole[:4]
    assert prefix_key(ids, (), 258) == [5]


async def test_prompt_logprobs_run_every_row(model: LoadedModel) -> None:
    prompt = Prompt(text(30))
    async with started(model, prefix_cache=True) as engine:
        assert await hit(engine, prompt, prompt_logprobs=True) == 0
        assert await hit(engine, prompt, prompt_logprobs=True) == 0
        assert engine.load().lookups == 0
        assert await hit(engine, prompt) == 28


@pytest.mark.parametrize("replay", list(PRESETS))
async def test_decoder_replay_runs_the_last_window_again(model: LoadedModel, replay: str) -> None:
    ids = text(40)
    for chunk in (3, 16, 100):
        async with started(model, prefix_cache=True, replay=replay, chunked_prefill_size=chunk) as engine:
            assert await hit(engine, Prompt(ids)) == 0
            assert await hit(engine, Prompt(ids)) == 40 - WINDOW
            assert await hit(engine, Prompt([*ids, *text(WINDOW)])) == 40
            assert await hit(engine, Prompt([*ids, *text(WINDOW - 1)])) in {32, 36}


async def test_lost_windows_spoil_a_hit_unless_the_encoder_is_replayed(model: LoadedModel) -> None:
    ids = text(40)
    for encoder_replay in (False, True):
        given = {"window_cache_tokens": 0, "encoder_replay": encoder_replay, "prefix_cache": True}
        async with started(model, **given) as engine:
            assert await hit(engine, Prompt(ids)) == 0
            assert engine.load().cached_tokens == 40
            assert await hit(engine, Prompt(ids)) == (36 if encoder_replay else 0)
            assert engine.load().evicted_window_pages == (0 if encoder_replay else 20)


async def test_cached_pages_make_way(model: LoadedModel) -> None:
    """Requests that need the whole pool follow one another, each over what the one before has left."""
    async with started(model, prefix_cache=True, max_total_tokens=48, window_cache_tokens=16) as engine:
        for seed in range(6):
            assert await hit(engine, Prompt(text(46, seed)), max_new_tokens=3) == 0
            assert engine.load().cached_tokens == 48
        load = engine.load()
        assert load.evicted_pages == 5 * 12
        assert load.evicted_window_pages > 0
        assert engine.flush_cache()
        assert engine.load().cached_tokens == 0


@pytest.mark.parametrize("replay", [None, "0.5.23"])
@pytest.mark.parametrize("page_size", [2, 4, 6, 16])
def test_a_request_holds_few_windows(model: LoadedModel, page_size: int, replay: str | None) -> None:
    """As many as one request may take are there and no more are needed, on a cold start and behind a hit."""
    given = limits(page_size=page_size, chunked_prefill_size=9, max_running_requests=1, replay=replay,
                   prefix_cache=True, window_cache_tokens=0)  # fmt: skip
    log: list[Event] = []
    engine = Scheduler(model, given)
    pool = engine._memory.pool
    least = pool.geometry.window_pages_per_request(9)
    assert least <= pool.window_pages.count <= least + WINDOW // page_size + 2
    for tokens in (50, 51, 55):
        engine.submit(Job("a", "generate", Prompt(text(tokens)), replace(SHORT, max_new_tokens=12), 0, log.append))
        while engine.load().running:
            engine.step()
    assert [event.finish for event in log if isinstance(event, Step) and event.finish] == ["length"] * 3


@pytest.mark.parametrize("replay", [None, *PRESETS])
@pytest.mark.parametrize("chunk", [5, 8, 20, 100])
async def test_replay_counts_rows_times_layers(model: LoadedModel, replay: str | None, chunk: int) -> None:
    rows = 50
    async with started(model, replay=replay, chunked_prefill_size=chunk) as engine:
        await answer(engine, Prompt(text(rows)))
        chunks = [min(chunk, rows - start) for start in range(0, rows, chunk)]
        whole = 0 if replay == "0.5.23" else 1 if replay else LAYERS - SPLIT
        decoder = rows * whole + sum(min(WINDOW, n) for n in chunks) * (LAYERS - SPLIT - whole)
        work = Work(encoder=rows * SPLIT, decoder=decoder, skipped=rows * (LAYERS - SPLIT) - decoder)
        assert engine.replay().work == work


async def test_replay_says_why_it_does_not_run(model: LoadedModel) -> None:
    async with started(model, prefix_cache=True) as engine:
        await answer(engine, Prompt(text(50)))
        state = engine.replay()
        assert (state.decoder_active, state.decoder_reason, state.preset) == (False, "TurnedOff", "")
        assert (state.encoder_active, state.encoder_reason) == (False, "TurnedOff")
    async with started(model, replay="0.5.23", encoder_replay=True, prefix_cache=True) as engine:
        reported = []
        for length, logprobs in ((0, False), (8, True), (40, True), (8, True), (7, False), (40, False), (40, True)):
            if length:
                await answer(engine, Prompt(text(length, length)), replace(ONE, prompt_logprobs=logprobs))
            state = engine.replay()
            reported.append((state.decoder_active, state.decoder_reason, state.encoder_active, state.encoder_reason))
        waiting = (False, "NoLongPromptYet", False, "NoPrefixHitYet")
        bypassed = (False, "PromptLogprobs", False, "PromptLogprobs")
        assert reported == [waiting, waiting, bypassed, bypassed, bypassed, (True, "", True, ""), (True, "", True, "")]
        assert state.preset == "0.5.23"
        assert state.work.replayed == WINDOW


async def test_replay_that_these_limits_keep_from_running_says_so(model: LoadedModel) -> None:
    for given, reasons in (
        ({"chunked_prefill_size": WINDOW}, ("ChunksWithinWindow", "TurnedOff")),
        ({"encoder_replay": True, "prefix_cache": False}, ("", "NoPrefixCache")),
    ):
        async with started(model, **{"replay": "0.5.23", "prefix_cache": True} | given) as engine:
            await answer(engine, Prompt(text(40)))
            state = engine.replay()
            assert (state.decoder_reason, state.encoder_reason) == reasons


async def test_a_reason_does_not_come_back(model: LoadedModel) -> None:
    async with started(model, encoder_replay=True, prefix_cache=True) as engine:
        reported = []
        for seed, logprobs in enumerate((True, False, True)):
            await answer(engine, Prompt(text(40, seed)), replace(ONE, prompt_logprobs=logprobs))
            reported.append(engine.replay().encoder_reason)
        assert reported == ["PromptLogprobs", "NoPrefixHitYet", "NoPrefixHitYet"]


async def test_what_replay_spared_never_goes_back(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even between the finding of a prefix and the running of its rows: it is a counter."""
    ids, seen = text(40), list[int]()
    async with started(model, replay="0.5.23", encoder_replay=True, prefix_cache=True) as engine:
        forward = engine._scheduler._forward

        def watched(extends: Sequence[Extend]) -> Output:
            seen.append(CacheReport(engine.replay(), engine.load(), memory_of(engine).geometry, SPLIT).encoder.skipped)
            return forward(extends)

        monkeypatch.setattr(engine._scheduler, "_forward", watched)
        await answer(engine, Prompt(ids))
        await answer(engine, Prompt(ids))
        skipped = CacheReport(engine.replay(), engine.load(), memory_of(engine).geometry, SPLIT).encoder.skipped
    assert skipped == (36 - WINDOW) * SPLIT
    assert seen == sorted(seen)
    assert set(seen) == {0, skipped}


async def test_a_flush_waits_for_no_one(model: LoadedModel) -> None:
    async with started(model, prefix_cache=True) as engine:
        await answer(engine, Prompt(text(20)))
        async with engine.generate("a", Prompt(text(20)), replace(SHORT, max_new_tokens=50)) as stream:
            await anext(stream)
            assert not engine.flush_cache()
            assert engine.load().cached_tokens >= 20
        assert engine.flush_cache()
        assert await hit(engine, Prompt(text(20))) == 0

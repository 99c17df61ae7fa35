"""However a request is served, its answer is the same."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epd_workers.reference.engine.request import Handover, ImageSpan, Prompt, Sampling, Step
from epd_workers.reference.engine.sampler import choose, uniform
from epd_workers.reference.model.replay import PRESETS
from tests.support.reference.engines import (
    GREEDY,
    SHORT,
    answer,
    close,
    collect,
    memory_of,
    picture,
    started,
    text,
)
from tests.support.reference.loop import Loop, agrees
from tests.support.reference.small import WINDOW

if TYPE_CHECKING:
    from epd_workers.reference.engine.job import Piece
    from epd_workers.reference.model.loaded import LoadedModel

CALM = settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
REPLAYS = [None, *PRESETS]


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """Up to 62 tokens, up to two images of up to 6 rows."""
    ids: list[int] = text(draw(st.integers(1, 25)), seed=draw(st.integers(0, 999)))
    images: list[ImageSpan] = []
    for _ in range(draw(st.integers(0, 2))):
        images.append(picture(len(ids), draw(st.integers(1, 6)), draw(st.integers(0, 99))))
        ids = [*ids, *[258] * len(images[-1].embeddings), *text(draw(st.integers(0, 12)), draw(st.integers(0, 999)))]
    return Prompt(ids, images)


SAMPLINGS = st.builds(
    Sampling,
    max_new_tokens=st.integers(2, 6),
    min_new_tokens=st.integers(0, 2),
    temperature=st.sampled_from([0.0, 0.0, 0.8, 1.5]),
    top_p=st.sampled_from([1.0, 0.9]),
    top_k=st.sampled_from([-1, 20]),
    min_p=st.sampled_from([0.0, 0.01]),
    seed=st.one_of(st.none(), st.integers(0, 2**63)),
    stop=st.sampled_from([(), ("e",), ("ab", "q"), ("zzz", "o")]),
    stop_token_ids=st.sampled_from([(), (32, 100, 9999)]),
    ignore_eos=st.booleans(),
    logprobs=st.just(True),
    top_logprobs=st.integers(0, 3),
    prompt_logprobs=st.booleans(),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    presence_penalty=st.sampled_from([0.0, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
)


async def handed_over(
    model: LoadedModel, prompt: Prompt, sampling: Sampling, **given: Any
) -> tuple[Handover, list[Step]]:
    """Prefill in one engine, decode in another, everything between them as text and bytes."""
    pieces: list[Piece] = []
    async with started(model, **given) as prefill:
        handover = await prefill.prefill("p", prompt, sampling, pieces.append)
    wire = Handover.from_json(json.loads(json.dumps(handover.to_json())))
    assert wire == handover
    async with started(model, **given) as decode:
        stream = decode.resume("d", Prompt(prompt.token_ids), sampling, wire, pieces[::-1])
        return handover, await collect(stream)


@CALM
@given(prompts(), st.integers(1, 40), st.sampled_from([2, 4, 6, 16]), st.sampled_from(["fp4", "bf16"]))
def test_chunked_equals_unchunked(
    model: LoadedModel, prompt: Prompt, chunk: int, page_size: int, cache_type: str
) -> None:
    async def main() -> None:
        async with started(model, cache_type=cache_type) as engine:
            whole = await answer(engine, prompt)
        async with started(model, chunked_prefill_size=chunk, page_size=page_size, cache_type=cache_type) as engine:
            assert close(await answer(engine, prompt), whole)

    asyncio.run(main())


@settings(CALM, max_examples=12)
@given(prompts(), SAMPLINGS, st.sampled_from([2, 4, 6, 16]), st.integers(1, 20), st.sampled_from(REPLAYS))
def test_prefill_and_resume_equal_generate(
    model: LoadedModel, prompt: Prompt, sampling: Sampling, page_size: int, chunk: int, replay: str | None
) -> None:
    async def main() -> None:
        given = {"page_size": page_size, "chunked_prefill_size": chunk, "replay": replay}
        handover, steps = await handed_over(model, prompt, sampling, **given)
        async with started(model, **given) as engine:
            whole = await answer(engine, prompt, replace(sampling, seed=handover.seed))
        assert close(steps, whole)

    asyncio.run(main())


@pytest.mark.parametrize("page_size", [2, 4, 6])
def test_every_prompt_length_around_page_boundaries(model: LoadedModel, page_size: int) -> None:
    async def main() -> None:
        async with started(model, page_size=page_size) as engine:
            for length in range(1, 3 * page_size + 2):
                prompt, pieces = Prompt(text(length, seed=length)), list[Any]()
                handover = await engine.prefill("p", prompt, SHORT, pieces.append)
                resumed = await collect(engine.resume("d", prompt, SHORT, handover, pieces))
                assert close(resumed, await answer(engine, prompt))

    asyncio.run(main())


@CALM
@given(prompts(), SAMPLINGS, st.integers(0, 99))
def test_generate_equals_a_plain_loop(model: LoadedModel, prompt: Prompt, sampling: Sampling, seed: int) -> None:
    """No cache, no batch, no state: every token from the whole text before it."""
    sampling = replace(sampling, seed=seed, min_new_tokens=0, ignore_eos=True, stop=(), stop_token_ids=())
    expected: list[int] = []
    for index in range(sampling.max_new_tokens):
        grown = Prompt([*prompt.token_ids, *expected], prompt.images)
        logits = Loop(model, grown).rows(len(grown.token_ids)).double().numpy()
        for token in set(grown.token_ids):
            logits[token] *= sampling.repetition_penalty ** (-1 if logits[token] > 0 else 1)
        for token in set(expected):
            logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * expected.count(token)
        expected.append(choose(logits, sampling, uniform(seed, index)))

    async def main() -> None:
        async with started(model, chunked_prefill_size=7) as engine:
            assert [step.token_id for step in await answer(engine, prompt, sampling)] == expected

    asyncio.run(main())


@CALM
@given(
    st.lists(st.tuples(prompts(), SAMPLINGS), min_size=2, max_size=4),
    st.integers(1, 40),
    st.integers(1, 8),
    st.sampled_from(REPLAYS),
)
def test_batched_equals_single(
    model: LoadedModel, requests: list[tuple[Prompt, Sampling]], chunk: int, running: int, replay: str | None
) -> None:
    requests = [(prompt, replace(sampling, seed=i)) for i, (prompt, sampling) in enumerate(requests)]

    async def main() -> None:
        given = {"chunked_prefill_size": chunk, "max_running_requests": running, "replay": replay}
        async with started(model, **given) as engine:
            streams = [engine.generate(str(i), *request) for i, request in enumerate(requests)]
            together = await asyncio.gather(*map(collect, streams))
            for request, steps in zip(requests, together, strict=True):
                assert close(steps, await answer(engine, *request))

    asyncio.run(main())


@CALM
@given(prompts(), st.integers(0, 60), st.integers(1, 30), st.integers(1, 40), st.sampled_from([2, 4, 6, 16]))
def test_a_prefix_hit_equals_a_cold_start(
    model: LoadedModel, prompt: Prompt, shared: int, more: int, chunk: int, page_size: int
) -> None:
    """Whether an earlier request was shorter, longer, or ran into its answer, and whatever else still runs."""
    head = Prompt(
        prompt.token_ids[: max(1, shared)], [i for i in prompt.images if i.start + len(i.embeddings) <= shared]
    )
    head = head if head.token_ids.count(258) == sum(len(i.embeddings) for i in head.images) else prompt

    async def main() -> None:
        async with started(model, chunked_prefill_size=chunk, page_size=page_size, prefix_cache=True) as engine:
            first = await answer(engine, head, replace(SHORT, max_new_tokens=9))
            tokens = [step.token_id for step in first[:-1]]
            turns = [head, Prompt([*head.token_ids, *tokens, *text(more)], head.images), prompt]
            warm = [await answer(engine, turn) for turn in turns]
            hits = engine.load().hit_tokens
            assert engine.flush_cache()
            for turn, steps in zip(turns, warm, strict=True):
                assert close(steps, await answer(engine, turn))
                assert engine.flush_cache()
            if len(head.token_ids) > page_size:
                assert hits > 0
            assert engine.load().hit_tokens == hits

    asyncio.run(main())


@pytest.mark.parametrize("prefix_cache", [False, True])
async def test_an_answer_begun_anew_anywhere_goes_on_the_same(model: LoadedModel, prefix_cache: bool) -> None:
    prompt = text(21)
    async with started(model, prefix_cache=prefix_cache, chunked_prefill_size=7) as engine:
        whole = [step.token_id for step in await answer(engine, Prompt(prompt), GREEDY)]
        for done in (1, 4, 5, 10):
            sampling = replace(GREEDY, max_new_tokens=12 - done)
            rest = await answer(engine, Prompt([*prompt, *whole[:done]]), sampling)
            assert [step.token_id for step in rest] == whole[done:]


@settings(CALM, max_examples=14)
@given(prompts(), st.sampled_from([1, 3, 5, 8, 13, 40]), st.sampled_from(list(PRESETS)))
def test_decoder_replay_runs_the_stated_rows(model: LoadedModel, prompt: Prompt, chunk: int, replay: str) -> None:
    """Cold, the chunks that a lone forward would run; behind a hit, one more whose first row is the hit's end."""
    end, pages = len(prompt.token_ids), 4
    loop = Loop(model, prompt, PRESETS[replay])
    cold = [loop.rows(stop) for stop in [*range(chunk, end, chunk), end]][-1]

    async def main() -> None:
        given = {"chunked_prefill_size": chunk, "replay": replay, "prefix_cache": True, "page_size": pages}
        async with started(model, **given) as engine:
            assert agrees(await answer(engine, prompt), loop.answer(cold))
            before = engine.load()
            again = await answer(engine, prompt)
            hit = engine.load().hit_tokens
            assert hit == max(0, end - WINDOW) // pages * pages
            assert engine.load().prompt_tokens - before.prompt_tokens == end - hit
        behind = Loop(model, prompt, PRESETS[replay])
        if hit:
            behind.rows(hit)
            first = hit + max(chunk, WINDOW)
        else:
            first = chunk
        warm = [behind.rows(stop) for stop in [*range(first, end, chunk), end]][-1]
        assert agrees(again, behind.answer(warm))

    asyncio.run(main())


@CALM
@given(prompts(), st.integers(1, 40), st.integers(0, 20), st.sampled_from(REPLAYS), st.sampled_from([4, 6]))
def test_encoder_replay_runs_the_window_again_and_writes_no_entry(
    model: LoadedModel, prompt: Prompt, chunk: int, more: int, replay: str | None, page_size: int
) -> None:
    longer = Prompt([*prompt.token_ids, *text(more)], prompt.images)
    end = len(longer.token_ids)

    async def main() -> None:
        given = {"chunked_prefill_size": chunk, "replay": replay, "encoder_replay": True, "prefix_cache": True}
        async with started(model, **given, page_size=page_size) as engine:
            await answer(engine, prompt, replace(SHORT, max_new_tokens=1))
            memory = memory_of(engine)
            shared = sorted(memory.pool.pages._used)
            stores = [*memory.pool._main.values(), *memory.pool._index.values()]
            before = [store.data[page].clone() for store in stores for page in shared]
            warm = await answer(engine, longer)
            after = [store.data[page] for store in stores for page in shared]
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
            hit = min(len(prompt.token_ids), end - 1) // page_size * page_size
            assert engine.load().hit_tokens == hit
            assert engine.replay().work.replayed == min(hit, WINDOW)
            assert engine.replay().encoder_active == (hit > 0)
            assert memory.stats.held_windows == 0
        loop, again = Loop(model, longer, PRESETS[replay] if replay else None), min(hit, WINDOW)
        if hit:
            loop.rows(hit)
        first = hit + max(chunk, 1)
        for stop in [*range(first, end, chunk), end]:
            logits = loop.rows(stop, again)
            again = 0
        assert agrees(warm, loop.answer(logits))

    asyncio.run(main())


MODES: list[dict[str, Any]] = [
    {"replay": None},
    {"replay": "0.5.23"},
    {"replay": "dsv41-37ae292e"},
    {"replay": None, "encoder_replay": True},
    {"replay": "0.5.23", "encoder_replay": True},
]


@settings(CALM, max_examples=10)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 12), st.integers(0, 1)), min_size=2, max_size=3),
    st.integers(2, 30),
    st.sampled_from([2, 4, 6, 16]),
    st.sampled_from(MODES),
)
def test_nobody_reads_a_window_that_was_not_written(
    model: LoadedModel, asked: list[tuple[int, int, int]], chunk: int, page_size: int, mode: dict[str, Any]
) -> None:
    """Fresh window pages full of rubbish change no answer, whatever is hit, replayed or handed over."""

    async def served(fill: int) -> list[list[Step]]:
        answers = []
        given = {"chunked_prefill_size": chunk, "page_size": page_size, "prefix_cache": True} | mode
        async with started(model, **given, window_cache_tokens=32) as engine:
            pool = memory_of(engine).pool
            allocate = pool.window_pages.allocate

            def filled(count: int) -> list[int]:
                taken = allocate(count)
                for page in taken:
                    pool.window_page(page).fill_(fill)
                return taken

            pool.allocate_windows = filled  # type: ignore[method-assign] # fills with rubbish
            for shared, own, seed in asked:
                prompt, pieces = Prompt([*text(shared), *text(own, seed)]), list[Any]()
                answers.append(await answer(engine, prompt))
                handover = await engine.prefill("p", prompt, SHORT, pieces.append)
                answers.append(await collect(engine.resume("d", prompt, SHORT, handover, pieces)))
        return answers

    async def main() -> None:
        for clean, dirty in zip(await served(0), await served(0x5A), strict=True):
            assert close(clean, dirty)

    asyncio.run(main())

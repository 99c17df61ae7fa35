from __future__ import annotations

import asyncio
import json
import random
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from epd_workers.reference.engine.engine import Engine
from epd_workers.reference.engine.request import (
    Aborted,
    EngineFailed,
    Handover,
    ImageRef,
    ImageSpan,
    InvalidRequest,
    Limits,
    Prompt,
    PromptTooLong,
    QueueFull,
    Sampling,
    Step,
)
from epd_workers.reference.engine.sampler import choose, uniform
from epd_workers.reference.model.interface import BadImage, Chunk, LayoutMismatch
from epd_workers.reference.model.tokenizer import ImageSlot, Tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from epd_workers.reference.engine.engine import Stream
    from epd_workers.reference.model.seeded import SeededModel

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
GREEDY = Sampling(max_new_tokens=12, temperature=0, ignore_eos=True)
HELLO = Prompt([256, 260, *b"hello", 257, 261])


@asynccontextmanager
async def started(model: SeededModel, **limits: int) -> AsyncIterator[Engine]:
    engine = Engine(model, Tokenizer(), Limits(**{"page_size": 4, "max_total_tokens": 2048} | limits))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        assert idle(engine)


def idle(engine: Engine) -> bool:
    load = engine.load()
    return (load.running, load.waiting, load.encoding, load.used_tokens) == (0, 0, 0, 0)


async def collect(stream: Stream) -> list[Step]:
    return [step async for step in stream]


def close(left: list[Step], right: list[Step]) -> bool:
    """Equal but for the last bits of log-probabilities."""

    def bare(step: Step) -> tuple[object, ...]:
        return step.token_id, step.finish, step.matched_stop, [i for i, _ in step.top_logprobs]

    def numbers(step: Step) -> list[float]:
        return [step.logprob, *(p for _, p in step.top_logprobs), *(p or 0.0 for p in step.prompt_logprobs)]

    return [bare(step) for step in left] == [bare(step) for step in right] and all(
        numbers(a) == pytest.approx(numbers(b), abs=1e-4) for a, b in zip(left, right, strict=True)
    )


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """Up to 45 tokens, up to two images of up to 6 rows."""
    ids: list[int] = draw(st.lists(st.integers(0, 255), min_size=1, max_size=12))
    images = []
    for _ in range(draw(st.integers(0, 2))):
        generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        rows = torch.randn(draw(st.integers(1, 6)), 32, generator=generator)
        images.append(ImageSpan(len(ids), rows))
        ids = [*ids, *[Tokenizer.image_id] * len(rows), *draw(st.lists(st.integers(0, 255), max_size=10))]
    return Prompt(ids, images)


SAMPLINGS = st.builds(
    Sampling,
    max_new_tokens=st.integers(3, 14),
    min_new_tokens=st.integers(0, 3),
    temperature=st.sampled_from([0.0, 0.0, 0.8, 1.5]),
    top_p=st.sampled_from([1.0, 0.9]),
    top_k=st.sampled_from([-1, 20]),
    min_p=st.sampled_from([0.0, 0.01]),
    seed=st.one_of(st.none(), st.integers(0, 2**63)),
    stop=st.sampled_from([(), ("e",), ("ab", "q"), ("zzz", "o")]),
    stop_token_ids=st.sampled_from([(), (32, 100, 9999)]),
    ignore_eos=st.booleans(),
    logprobs=st.booleans(),
    top_logprobs=st.integers(0, 3),
    prompt_logprobs=st.booleans(),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    presence_penalty=st.sampled_from([0.0, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
)


async def handed_over(
    model: SeededModel, prompt: Prompt, sampling: Sampling, page_size: int, chunk: int
) -> tuple[Handover, list[Step]]:
    """Prefill in one engine, decode in another, everything between them as text and bytes."""
    pages: list[bytes] = []

    def on_page(index: int, data: bytes) -> None:
        assert index == len(pages)
        pages.append(data)

    async with started(model, page_size=page_size, chunked_prefill_size=chunk) as prefill:
        handover = await prefill.prefill("p", prompt, sampling, on_page)
        assert idle(prefill)
    wire = Handover.from_json(json.loads(json.dumps(handover.to_json())))
    assert wire == handover
    async with started(model, page_size=page_size) as decode:
        blind = Prompt(prompt.token_ids)
        return handover, await collect(decode.resume("d", blind, sampling, wire, pages))


@settings(CALM, max_examples=60)
@given(prompts(), SAMPLINGS, st.integers(1, 8), st.integers(1, 20))
def test_prefill_and_resume_equal_generate(
    model: SeededModel, prompt: Prompt, sampling: Sampling, page_size: int, chunk: int
) -> None:
    async def main() -> None:
        handover, steps = await handed_over(model, prompt, sampling, page_size, chunk)
        async with started(model, page_size=7) as engine:
            whole = await collect(engine.generate("g", prompt, replace(sampling, seed=handover.seed)))
        assert close(steps, whole)

    asyncio.run(main())


@pytest.mark.parametrize("page_size", range(1, 9))
def test_every_prompt_length_around_page_boundaries(model: SeededModel, page_size: int) -> None:
    async def main() -> None:
        for length in range(1, 3 * page_size + 2):
            ids = [(7 * i + length) % 256 for i in range(length)]
            for temperature in (0.0, 1.0):
                sampling = replace(GREEDY, temperature=temperature, seed=length, max_new_tokens=6)
                _, steps = await handed_over(model, Prompt(ids), sampling, page_size, chunk=2 * page_size)
                async with started(model) as engine:
                    assert close(steps, await collect(engine.generate("g", Prompt(ids), sampling)))

    asyncio.run(main())


@settings(CALM, max_examples=40)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=20), SAMPLINGS, st.integers(0, 99))
def test_generate_equals_a_plain_loop(model: SeededModel, ids: list[int], sampling: Sampling, seed: int) -> None:
    """No cache, no batch, no state: every token from the whole text before it."""
    sampling = replace(sampling, seed=seed, min_new_tokens=0, ignore_eos=True, stop=(), stop_token_ids=())
    expected: list[int] = []
    for index in range(sampling.max_new_tokens):
        logits = model.forward(Chunk([*ids, *expected], 0), model.new_cache(4))[0].double().numpy()
        for token in set(ids) | set(expected):
            logits[token] *= sampling.repetition_penalty ** (-1 if logits[token] > 0 else 1)
        for token in set(expected):
            logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * expected.count(token)
        expected.append(choose(logits, sampling, uniform(seed, index)))

    async def main() -> None:
        async with started(model, chunked_prefill_size=7) as engine:
            assert [step.token_id for step in await collect(engine.generate("a", Prompt(ids), sampling))] == expected

    asyncio.run(main())


@settings(CALM, max_examples=25)
@given(st.lists(st.tuples(prompts(), SAMPLINGS), min_size=2, max_size=6), st.integers(1, 20), st.integers(1, 8))
def test_batched_equals_single(
    model: SeededModel, requests: list[tuple[Prompt, Sampling]], chunk: int, running: int
) -> None:
    requests = [(prompt, replace(sampling, seed=i)) for i, (prompt, sampling) in enumerate(requests)]

    async def main() -> None:
        async with started(model, chunked_prefill_size=chunk, max_running_requests=running) as engine:
            streams = [engine.generate(str(i), *request) for i, request in enumerate(requests)]
            together = await asyncio.gather(*map(collect, streams))
            for request, steps in zip(requests, together, strict=True):
                assert close(steps, await collect(engine.generate("alone", *request)))
            assert idle(engine)

    asyncio.run(main())


class Client:
    """Asks for something at random and loses interest at random."""

    def __init__(self, engine: Engine, chance: random.Random, handover: Handover, pages: list[bytes]) -> None:
        self.engine = engine
        self.chance = chance
        self.handover = handover
        self.pages = pages

    async def ask(self, rid: str) -> None:
        kind = self.chance.choice(["generate", "prefill", "resume", "encode"])
        if kind == "encode":
            await self.engine.encode(Image.new("RGB", (50, 50)))
        elif kind == "prefill":
            await self.engine.prefill(rid, Prompt([65] * self.chance.randint(1, 30)), GREEDY, lambda *_: None)
        elif kind == "generate":
            await self.read(self.engine.generate(rid, HELLO, GREEDY))
        else:
            await self.read(self.engine.resume(rid, HELLO, GREEDY, self.handover, self.pages))

    async def read(self, stream: Stream) -> None:
        for _ in range(self.chance.randint(0, 14)):
            await anext(stream, None)
        await stream.aclose()

    async def come_and_go(self, rid: str) -> None:
        task = asyncio.create_task(self.ask(rid))
        await asyncio.sleep(self.chance.random() * 0.01)
        way = self.chance.randint(0, 2)
        if way == 0:
            task.cancel()
        elif way == 1:
            self.engine.abort(rid)
        await asyncio.wait([task])
        if not task.cancelled() and task.exception():
            assert isinstance(task.exception(), QueueFull | Aborted)


@settings(CALM, max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([32, 64, 400]))
def test_abort_storms_leave_nothing(model: SeededModel, seed: int, running: int, tokens: int) -> None:
    limits = {"max_total_tokens": tokens, "max_running_requests": running, "max_queued_requests": 6}

    async def main() -> None:
        pages: list[bytes] = []
        async with started(model, **limits, chunked_prefill_size=4) as engine:
            handover = await engine.prefill("p", HELLO, GREEDY, lambda _, data: pages.append(data))
            client = Client(engine, random.Random(seed), handover, pages)
            await asyncio.gather(*(client.come_and_go(str(i)) for i in range(14)))
            assert idle(engine)
            assert engine.flush_cache()
            assert len(await collect(engine.generate("next", HELLO, GREEDY))) == 12

    asyncio.run(main())


async def test_cancelling_a_waiting_reader_aborts(model: SeededModel) -> None:
    async with started(model, max_running_requests=1) as engine:
        first = engine.generate("a", HELLO, replace(GREEDY, max_new_tokens=100))
        reader = asyncio.create_task(collect(engine.generate("b", HELLO, GREEDY)))
        await anext(first)
        assert (engine.load().running, engine.load().waiting) == (1, 1)
        assert not engine.flush_cache()
        reader.cancel()
        await asyncio.wait([reader])
        assert engine.load().waiting == 0
        async with first:
            pass
        assert idle(engine)
        assert await collect(first) == []


async def test_an_error_in_on_page_aborts_and_comes_through(model: SeededModel) -> None:
    def refuse(index: int, data: bytes) -> None:
        raise ConnectionError(f"page {index} of {len(data)} bytes")

    async with started(model, chunked_prefill_size=4) as engine:
        with pytest.raises(ConnectionError, match="page 0"):
            await engine.prefill("p", Prompt([65] * 100), GREEDY, refuse)
        assert idle(engine)


async def test_limits_are_reported_at_the_call(model: SeededModel) -> None:
    async with started(model, max_total_tokens=64, max_running_requests=1, max_queued_requests=1) as engine:
        with pytest.raises(PromptTooLong, match="128 tokens: the context holds 128"):
            engine.generate("long", Prompt([65] * 128), GREEDY)
        with pytest.raises(PromptTooLong, match=r"need 71 tokens.*lower max_new_tokens"):
            engine.generate("long", Prompt([65] * 60), GREEDY)
        streams = [engine.generate(rid, HELLO, GREEDY) for rid in "ab"]
        with pytest.raises(QueueFull):
            engine.generate("c", HELLO, GREEDY)
        with pytest.raises(QueueFull):
            await engine.prefill("d", HELLO, GREEDY, lambda *_: None)
        for stream in streams:
            assert len(await collect(stream)) == 12


async def test_answer_is_cut_to_the_context(model: SeededModel) -> None:
    async with started(model) as engine:
        steps = await collect(engine.generate("a", Prompt([65] * 125), replace(GREEDY, max_new_tokens=999)))
        assert [step.finish for step in steps] == [None, None, "length"]


async def test_contradictory_prompts_are_refused(model: SeededModel) -> None:
    rows = torch.zeros(2, 32)
    async with started(model) as engine:
        for prompt, words in (
            (Prompt([]), "empty"),
            (Prompt([65, 262, -1]), r"ids \[-1, 262\]"),
            (Prompt([65, 258]), "1 image placeholders without"),
            (Prompt([258, 258, 65], [ImageSpan(1, rows)]), r"images\[0\] covers range\(1, 3\)"),
            (Prompt([258, 258], [ImageSpan(0, rows), ImageSpan(0, rows)]), r"images\[1\]"),
            (Prompt([258, 258], [ImageSpan(0, torch.zeros(2, 31))]), r"is \(2, 31\): must be \[tokens, 32\]"),
        ):
            with pytest.raises(InvalidRequest, match=words):
                engine.generate("a", prompt, GREEDY)


async def test_foreign_handovers_are_refused(model: SeededModel) -> None:
    pages: list[bytes] = []
    async with started(model) as engine:
        good = await engine.prefill("p", HELLO, GREEDY, lambda _, data: pages.append(data))
        for handover in (replace(good, layout="seeded-1/float32/other"), replace(good, page_size=8)):
            with pytest.raises(LayoutMismatch, match="start both alike"):
                engine.resume("d", HELLO, GREEDY, handover, pages)
        with pytest.raises(InvalidRequest, match="1 of 3 pages"):
            engine.resume("d", HELLO, GREEDY, good, pages[:1])
        with pytest.raises(InvalidRequest, match="decode sees 1"):
            engine.resume("d", Prompt([65]), GREEDY, good, pages)
        with pytest.raises(LayoutMismatch, match=r"pages of \[1\] bytes arrived"):
            engine.resume("d", HELLO, GREEDY, good, [b"x", b"x", b"x"])
        with pytest.raises(InvalidRequest, match="handover"):
            Handover.from_json({"first": {"token_id": 3}})
        assert idle(engine)
        assert len(await collect(engine.resume("d", HELLO, GREEDY, good, pages))) == 12
        assert len(pages) == 3


async def test_stop_string_across_tokens_ends_both_ways(model: SeededModel) -> None:
    async with started(model) as engine:
        free = await collect(engine.generate("a", HELLO, GREEDY))
        text = Tokenizer().decode(step.token_id for step in free)
        stop = text[3:6]
        assert text.find(stop) == 3
        steps = await collect(engine.generate("a", HELLO, replace(GREEDY, stop=("never", stop))))
        assert (len(steps), steps[-1].finish, steps[-1].matched_stop) == (6, "stop", stop)
        _, resumed = await handed_over(model, HELLO, replace(GREEDY, stop=(stop,)), page_size=4, chunk=8)
        assert [step.token_id for step in resumed] == [step.token_id for step in steps]
        assert resumed[-1].matched_stop == stop


async def test_stop_tokens_and_least_length(model: SeededModel) -> None:
    async with started(model) as engine:
        first = (await collect(engine.generate("a", HELLO, GREEDY)))[0].token_id
        stopping = replace(GREEDY, stop_token_ids=(first,))
        steps = await collect(engine.generate("a", HELLO, stopping))
        assert [(step.token_id, step.finish, step.matched_stop) for step in steps] == [(first, "stop", first)]
        longer = await collect(engine.generate("a", HELLO, replace(stopping, min_new_tokens=5)))
        assert len(longer) >= 5
        assert first not in [step.token_id for step in longer[:5]]


async def test_prompt_logprobs_do_not_depend_on_chunks(model: SeededModel) -> None:
    sampling = replace(GREEDY, prompt_logprobs=True, logprobs=True, top_logprobs=2)
    async with started(model, chunked_prefill_size=100) as engine:
        whole = await collect(engine.generate("a", HELLO, sampling))
    async with started(model, chunked_prefill_size=3) as engine:
        parts = await collect(engine.generate("a", HELLO, sampling))
    assert close(whole, parts)
    assert whole[0].prompt_logprobs[0] is None
    assert len(whole[0].prompt_logprobs) == len(HELLO.token_ids)
    assert all(p < 0 for p in whole[0].prompt_logprobs[1:] if p is not None)
    assert all(step.prompt_logprobs == () for step in whole[1:])
    assert whole[0].top_logprobs[0] == (whole[0].token_id, whole[0].logprob)


async def test_unseeded_answers_differ_and_seeded_ones_do_not(model: SeededModel) -> None:
    sampling = replace(GREEDY, temperature=2.0, max_new_tokens=20)
    async with started(model) as engine:
        free = [await collect(engine.generate("a", HELLO, sampling)) for _ in range(2)]
        fixed = [await collect(engine.generate("a", HELLO, replace(sampling, seed=1))) for _ in range(2)]
    assert free[0] != free[1]
    assert close(*fixed)


async def test_encode_and_build(model: SeededModel) -> None:
    tokenizer, image = Tokenizer(), Image.new("RGB", (100, 50), "green")
    async with started(model) as engine:
        rows = await engine.encode(image)
        assert len(rows) == model.image_tokens(100, 50)
        parts = ("see ", ImageSlot(0), "and ", ImageSlot(1))
        full, blind = (Prompt.build(tokenizer, parts, [r, r]) for r in (rows, ImageRef(len(rows))))
        assert full.token_ids == blind.token_ids
        assert [span.start for span in full.images] == [4, 8 + len(rows)]
        assert not blind.images
        assert len(await collect(engine.generate("a", full, GREEDY))) == 12
        with pytest.raises(BadImage):
            await engine.encode(Image.new("RGB", (10000, 1)))
        for images in ([rows], [rows, rows, rows]):
            with pytest.raises(InvalidRequest, match="one image per slot"):
                Prompt.build(tokenizer, parts, images)


async def test_life_cycle(model: SeededModel) -> None:
    engine = Engine(model, Tokenizer(), Limits(page_size=4))
    assert not engine.alive
    with pytest.raises(EngineFailed, match="not started"):
        engine.generate("a", HELLO, GREEDY)
    await engine.start()
    assert engine.alive
    stream = engine.generate("a", HELLO, replace(GREEDY, max_new_tokens=100))
    await anext(stream)
    await engine.stop()
    assert (await collect(stream))[-1] == Step(-1, finish="abort")
    assert not engine.alive
    with pytest.raises(EngineFailed, match="stopped"):
        engine.generate("a", HELLO, GREEDY)


async def test_an_internal_error_closes_the_engine(model: SeededModel, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(model) as engine:

        def broken() -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(engine._scheduler, "step", broken)
        assert (await collect(engine.generate("a", HELLO, GREEDY)))[-1].finish == "abort"
        assert not engine.alive

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from PIL import Image

from epd_workers.reference.engine.engine import Engine
from epd_workers.reference.engine.job import Piece
from epd_workers.reference.engine.request import (
    EngineFailed,
    Handover,
    ImageRef,
    ImageSpan,
    InvalidRequest,
    Limits,
    Prompt,
    PromptTooLong,
    QueueFull,
    Step,
)
from epd_workers.reference.model.interface import BadImage, LayoutMismatch
from epd_workers.reference.model.tokenizer import ImageSlot, Tokenizer
from tests.support.reference.engines import GREEDY, HELLO, answer, close, collect, idle, started, text

if TYPE_CHECKING:
    from epd_workers.reference.model.loaded import LoadedModel


async def test_cancelling_a_waiting_reader_aborts(model: LoadedModel) -> None:
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


async def test_an_error_in_on_piece_aborts_and_comes_through(model: LoadedModel) -> None:
    def refuse(piece: Piece) -> None:
        raise ConnectionError(f"{piece.kind} {piece.index} of {len(piece.data)} bytes")

    async with started(model, chunked_prefill_size=4) as engine:
        with pytest.raises(ConnectionError, match=f"page 0 of {engine.page_bytes} bytes"):
            await engine.prefill("p", Prompt([65] * 100), GREEDY, refuse)
        assert idle(engine)


async def test_limits_are_reported_at_the_call(model: LoadedModel) -> None:
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


async def test_answer_is_cut_to_the_context(model: LoadedModel) -> None:
    async with started(model) as engine:
        steps = await collect(engine.generate("a", Prompt([65] * 125), replace(GREEDY, max_new_tokens=999)))
        assert [step.finish for step in steps] == [None, None, "length"]


async def test_contradictory_prompts_are_refused(model: LoadedModel) -> None:
    rows = torch.zeros(2, 32)
    async with started(model) as engine:
        for prompt, words in (
            (Prompt([]), "empty"),
            (Prompt([65, 512, -1]), r"ids \[-1, 512\]"),
            (Prompt([65, 258]), "1 image placeholders without"),
            (Prompt([258, 258, 65], [ImageSpan(1, rows)]), r"images\[0\] covers range\(1, 3\)"),
            (Prompt([258, 258], [ImageSpan(0, rows), ImageSpan(0, rows)]), r"images\[1\]"),
            (Prompt([258, 258], [ImageSpan(0, torch.zeros(2, 31))]), r"is \(2, 31\): must be \[tokens, 32\]"),
        ):
            with pytest.raises(InvalidRequest, match=words):
                engine.generate("a", prompt, GREEDY)


async def test_foreign_handovers_are_refused(model: LoadedModel) -> None:
    pieces: list[Piece] = []
    prompt = Prompt(text(21))
    async with started(model) as engine:
        good = await engine.prefill("p", prompt, GREEDY, pieces.append)
        good = Handover.from_json(json.loads(json.dumps(good.to_json())))
        names = [(piece.kind, piece.index) for piece in pieces]
        assert names == [*(("page", i) for i in range(6)), *(("window", i) for i in (3, 4, 5)), ("state", 0)]
        sizes = {"page": engine.page_bytes, "window": engine.window_page_bytes, "state": engine.state_bytes}
        assert all(len(piece.data) == sizes[piece.kind] for piece in pieces)
        for handover in (replace(good, layout="other"), replace(good, page_size=8)):
            with pytest.raises(
                LayoutMismatch, match=f"'{handover.layout}', {handover.page_size}.*'{engine.layout}', 4"
            ):
                engine.resume("d", prompt, GREEDY, handover, pieces)
        with pytest.raises(InvalidRequest, match=r"missing: page 1, page 2.* and 1 more"):
            engine.resume("d", prompt, GREEDY, good, pieces[:1])
        with pytest.raises(InvalidRequest, match=r"not asked for: window 0.*sent twice: state 0"):
            engine.resume("d", prompt, GREEDY, good, [*pieces, pieces[-1], Piece("window", 0, b"")])
        with pytest.raises(InvalidRequest, match="prefill says 7 pages: 21 tokens need 6"):
            engine.resume("d", prompt, GREEDY, replace(good, pages=7), pieces)
        with pytest.raises(InvalidRequest, match="decode sees 1"):
            engine.resume("d", Prompt([65]), GREEDY, good, pieces)
        short = [Piece(piece.kind, piece.index, b"x") for piece in pieces]
        with pytest.raises(
            LayoutMismatch, match=f"a page piece of prefill has 1 bytes: decode's have {engine.page_bytes}"
        ):
            engine.resume("d", prompt, GREEDY, good, short)
        with pytest.raises(InvalidRequest, match="handover"):
            Handover.from_json({"first": {"token_id": 3}})
        assert idle(engine)
        assert len(await collect(engine.resume("d", prompt, GREEDY, good, pieces))) == 12
        assert len(pieces) == 10


async def test_other_weights_and_other_formats_have_another_layout(model: LoadedModel) -> None:
    async with started(model) as first, started(model) as same, started(model, cache_type="bf16") as other:
        assert first.layout == same.layout != other.layout
        assert first.page_bytes < other.page_bytes


@pytest.mark.parametrize("pair", [False, True])
async def test_a_stop_string_across_tokens_ends_the_answer(model: LoadedModel, pair: bool) -> None:
    tokenizer = model.tokenizer
    async with started(model) as engine:
        for seed in range(50):
            prompt = Prompt(text(9, seed))
            free = [step.token_id for step in await answer(engine, prompt, GREEDY)]
            left, right = (tokenizer.decode([token]) for token in free[2:4])
            if left and right and (left + right).isascii():
                break
        stop = left[-1] + right[0]
        length = next(n for n in range(1, 13) if stop in tokenizer.decode(free[:n]))
        sampling = replace(GREEDY, stop=("never", stop))
        if pair:
            pieces: list[Piece] = []
            handover = await engine.prefill("p", prompt, sampling, pieces.append)
            steps = await collect(engine.resume("d", prompt, sampling, handover, pieces))
        else:
            steps = await answer(engine, prompt, sampling)
        assert [step.token_id for step in steps] == free[:length]
        assert (steps[-1].finish, steps[-1].matched_stop) == ("stop", stop)


async def test_stop_tokens_and_least_length(model: LoadedModel) -> None:
    async with started(model) as engine:
        first = (await collect(engine.generate("a", HELLO, GREEDY)))[0].token_id
        stopping = replace(GREEDY, stop_token_ids=(first,))
        steps = await collect(engine.generate("a", HELLO, stopping))
        assert [(step.token_id, step.finish, step.matched_stop) for step in steps] == [(first, "stop", first)]
        longer = await collect(engine.generate("a", HELLO, replace(stopping, min_new_tokens=5)))
        assert len(longer) >= 5
        assert first not in [step.token_id for step in longer[:5]]


async def test_prompt_logprobs_do_not_depend_on_chunks(model: LoadedModel) -> None:
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


async def test_unseeded_answers_differ_and_seeded_ones_do_not(model: LoadedModel) -> None:
    sampling = replace(GREEDY, temperature=2.0, max_new_tokens=20)
    async with started(model) as engine:
        free = [await collect(engine.generate("a", HELLO, sampling)) for _ in range(2)]
        fixed = [await collect(engine.generate("a", HELLO, replace(sampling, seed=1))) for _ in range(2)]
    assert free[0] != free[1]
    assert close(*fixed)


async def test_encode_and_build(model: LoadedModel) -> None:
    tokenizer, image = Tokenizer.default(), Image.new("RGB", (100, 50), "green")
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


async def test_life_cycle(model: LoadedModel) -> None:
    engine = Engine(model, Limits(page_size=4))
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


async def test_an_internal_error_closes_the_engine(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(model) as engine:

        def broken() -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(engine._scheduler, "step", broken)
        assert (await collect(engine.generate("a", HELLO, GREEDY)))[-1].finish == "abort"
        assert not engine.alive

"""Requests that come, fail and go at random leave nothing behind."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from epd_workers.reference.engine.request import Aborted, EngineFailed, Prompt, QueueFull
from tests.support.reference.engines import GREEDY, HELLO, answer, close, collect, idle, memory_of, started, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_workers.reference.engine.engine import Engine, Stream
    from epd_workers.reference.engine.job import Piece
    from epd_workers.reference.engine.request import Handover
    from epd_workers.reference.model.interface import Extend, Output
    from epd_workers.reference.model.loaded import LoadedModel

CALM = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
POISON = 300


def poison(engine: Engine) -> None:
    """Let the model fail, half-way through a step, on every batch with a poisonous token."""
    forward = engine._scheduler._forward

    def failing(extends: Sequence[Extend]) -> Output:
        output = forward(extends)
        if any(POISON in extend.token_ids for extend in extends):
            raise RuntimeError("poisonous")
        return output

    engine._scheduler._forward = failing  # type: ignore[assignment] # fails at times


class Client:
    """Asks for something at random and loses interest at random."""

    def __init__(self, engine: Engine, chance: random.Random, handover: Handover, pieces: list[Piece]) -> None:
        self.engine = engine
        self.chance = chance
        self.handover = handover
        self.pieces = pieces

    def prompt(self) -> Prompt:
        """Prompts share prefixes; some are poisonous."""
        ids = text(30)[: self.chance.randint(1, 30)]
        return Prompt(ids + self.chance.choice([[], [66], [POISON], [67, 68]]))

    async def ask(self, rid: str) -> None:
        kind = self.chance.choice(["generate", "generate", "prefill", "resume", "encode"])
        if kind == "encode":
            await self.engine.encode(Image.new("RGB", (50, 50)))
        elif kind == "prefill":
            await self.engine.prefill(rid, self.prompt(), GREEDY, lambda _: None)
        elif kind == "generate":
            await self.read(self.engine.generate(rid, self.prompt(), GREEDY))
        else:
            await self.read(self.engine.resume(rid, HELLO, GREEDY, self.handover, self.pieces))

    async def read(self, stream: Stream) -> None:
        for _ in range(self.chance.randint(0, 14)):
            await anext(stream, None)
        await stream.aclose()

    async def come_and_go(self, rid: str) -> None:
        task = asyncio.create_task(self.ask(rid))
        await asyncio.sleep(self.chance.random() * 0.05)
        way = self.chance.randint(0, 2)
        if way == 0:
            task.cancel()
        elif way == 1:
            self.engine.abort(rid)
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            assert isinstance(error, QueueFull | Aborted) or "poisonous" in str(error)


MODES: list[dict[str, Any]] = [
    {"replay": None},
    {"replay": "0.5.23"},
    {"replay": "dsv41-37ae292e"},
    {"replay": None, "encoder_replay": True},
    {"replay": "0.5.23", "encoder_replay": True, "window_cache_tokens": 0},
    {"replay": None, "prefix_cache": False},
]


@settings(CALM, max_examples=12)
@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([48, 64, 400]), st.sampled_from(MODES))
def test_storms_leave_nothing(model: LoadedModel, seed: int, running: int, tokens: int, mode: dict[str, Any]) -> None:
    sizes = {"max_total_tokens": tokens, "max_running_requests": running, "max_queued_requests": 6}
    cache = {"prefix_cache": True, "window_cache_tokens": 16} | mode

    async def main() -> None:
        pieces: list[Piece] = []
        async with started(model, **sizes, **cache, chunked_prefill_size=5) as engine:
            handover = await engine.prefill("p", HELLO, GREEDY, pieces.append)
            poison(engine)
            client = Client(engine, random.Random(seed), handover, pieces)
            await asyncio.gather(*(client.come_and_go(str(i)) for i in range(8)))
            assert idle(engine)
            assert engine.flush_cache()
            assert len(await answer(engine, HELLO, GREEDY)) == 12
            assert engine.alive

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
async def test_a_poisonous_request_fails_alone(model: LoadedModel, mode: dict[str, Any]) -> None:
    """The others in its batch answer as if it had not been there, whatever the failed step had begun to write."""
    prompts = [Prompt(text(length, seed=length)) for length in (3, 9, 10)]
    cache = {"prefix_cache": True} | mode
    async with started(model, **cache) as engine:
        alone = [await answer(engine, prompt, GREEDY) for prompt in prompts]
        assert engine.flush_cache()
        poison(engine)
        streams = [engine.generate(str(i), prompt, GREEDY) for i, prompt in enumerate(prompts[:2])]
        bad = engine.generate("bad", Prompt([*text(6), POISON]), GREEDY)
        streams.append(engine.generate("2", prompts[2], GREEDY))
        with pytest.raises(EngineFailed, match="poisonous"):
            await collect(bad)
        for stream, expected in zip(streams, alone, strict=True):
            assert close(await collect(stream), expected)
        assert memory_of(engine).stats.held_pages > 0 or not cache["prefix_cache"]

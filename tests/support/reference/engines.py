"""A model small enough for hundreds of answers, and what all tests of the engine need around it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from epd_workers.reference.engine.engine import Engine
from epd_workers.reference.engine.request import ImageSpan, Limits, Prompt, Sampling, Step
from epd_workers.reference.model.loaded import LoadedModel
from tests.support.reference.small import HIDDEN, config, sharpen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from epd_workers.reference.engine.engine import Stream
    from epd_workers.reference.engine.memory import Memory

GREEDY = Sampling(max_new_tokens=12, temperature=0, ignore_eos=True)
SHORT = replace(GREEDY, max_new_tokens=3, logprobs=True, top_logprobs=5)
HELLO = Prompt([256, 260, *b"hello", 257, 261])


def tiny_model(seed: int) -> LoadedModel:
    """A model whose every row matters to the logits."""
    model = LoadedModel.random(config(128), seed)
    sharpen(model.weights)
    return model


def limits(**given: Any) -> Limits:
    """Small ones, every shortcut off but what is given."""
    small: dict[str, Any] = {"page_size": 4, "max_total_tokens": 2048, "replay": None, "prefix_cache": False}
    return Limits(**small | given)


@asynccontextmanager
async def started(model: LoadedModel, **given: Any) -> AsyncIterator[Engine]:
    engine = Engine(model, limits(**given))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        assert idle(engine)
        check_clean(memory_of(engine))


def memory_of(engine: Engine) -> Memory:
    return engine._scheduler._memory


def check_clean(memory: Memory) -> None:
    """Pages are the tree's or free; without the tree all are free."""
    pool = memory.pool
    assert pool.pages.count - pool.pages.free_count == memory.stats.held_pages
    assert pool.window_pages.count - pool.window_pages.free_count == memory.stats.held_windows
    memory.clear()
    assert pool.pages.count == pool.pages.free_count
    assert pool.window_pages.count == pool.window_pages.free_count


def idle(engine: Engine) -> bool:
    load = engine.load()
    return (load.running, load.waiting, load.encoding, load.used_tokens) == (0, 0, 0, 0)


async def collect(stream: Stream) -> list[Step]:
    return [step async for step in stream]


async def answer(engine: Engine, prompt: Prompt, sampling: Sampling = SHORT) -> list[Step]:
    return await collect(engine.generate("alone", prompt, sampling))


def close(left: Sequence[Step], right: Sequence[Step]) -> bool:
    """Equal tokens; log-probabilities equal but for the last bits of logits, which are float32."""

    def bare(step: Step) -> tuple[object, ...]:
        return step.token_id, step.finish, step.matched_stop, [i for i, _ in step.top_logprobs]

    def numbers(step: Step) -> list[float]:
        return [step.logprob, *(p for _, p in step.top_logprobs), *(p or 0.0 for p in step.prompt_logprobs)]

    return [bare(step) for step in left] == [bare(step) for step in right] and all(
        numbers(a) == pytest.approx(numbers(b), rel=1e-6, abs=1e-6) for a, b in zip(left, right, strict=True)
    )


def text(length: int, seed: int = 0) -> list[int]:
    """Random ids without markers."""
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def picture(start: int, rows: int, seed: int) -> ImageSpan:
    return ImageSpan(start, torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(seed)))

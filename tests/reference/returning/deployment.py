"""Engines that share a pool of windows and a folder of pages, and conversations that go from one to the other."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from epd_workers.reference.cache.disk import DiskPages
from epd_workers.reference.engine.engine import Engine
from epd_workers.reference.engine.space import namespace
from epd_workers.reference.model.replay import PRESETS
from epd_workers.swapool.key import Key
from epd_workers.swapool.memory import Memory
from epd_workers.swapool.pool import WindowPool
from tests.support.reference.engines import SHORT, check_clean, idle, limits, memory_of, picture, text
from tests.support.reference.loop import Loop
from tests.support.reference.small import WINDOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    import torch

    from epd_workers.reference.engine.job import Piece
    from epd_workers.reference.engine.request import Handover, Limits, Prompt, Step
    from epd_workers.reference.engine.store import Stores
    from epd_workers.reference.model.interface import Extend, Output
    from epd_workers.reference.model.loaded import LoadedModel
    from epd_workers.swapool.engine import Engine as Holder
    from epd_workers.swapool.key import Namespace
    from epd_workers.swapool.lookup import Lookup

SILENT = replace(SHORT, logprobs=False, top_logprobs=0)


class Windows:
    """A real pool as one deployment's engines see it; remembers what it was asked and given."""

    active = True

    def __init__(
        self,
        space: Namespace,
        holder: Holder | None = None,
        *,
        deadline: float = 5.0,
        ttl: float = 300.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.space, self.deadline, self.ttl = space, deadline, ttl
        self.holder: Holder = Memory(64 << 20) if holder is None else holder
        self.pool = WindowPool(self.holder, space.largest, clock=clock)
        self.asked: list[Key] = []
        self.given: list[tuple[int, bool]] = []
        self.ran_again = self.spared = 0

    def begin(self, chain: bytes, position: int, done: Callable[[], None]) -> Lookup:
        self.asked.append(Key(self.space, chain, position))
        return self.pool.begin(self.asked[-1], self.deadline, done)

    def put(self, chain: bytes, position: int, data: bytes, *, replayed: bool) -> None:
        self.given.append((position, replayed))
        self.pool.put(Key(self.space, chain, position), data, self.ttl, replayed=replayed)

    def replayed(self, tokens: int) -> None:
        self.ran_again += tokens

    def avoided(self, tokens: int) -> None:
        self.spared += tokens


@contextmanager
def folder(model: LoadedModel, where: Path | None = None, **given: Any) -> Iterator[DiskPages]:
    """Pages in a folder, of its own unless one is given."""
    with TemporaryDirectory() as temporary:
        bounds = returning(**given)
        geometry = model.geometry(bounds.page_size, bounds.cache_type)
        space = namespace(model, bounds, "", "tiny").digest
        pages = DiskPages(where or Path(temporary), space, geometry.page_bytes, limit=1 << 24, hours=1)
        try:
            yield pages
        finally:
            assert pages.close(10)


def returning(**given: Any) -> Limits:
    """Limits of a prefill server that uses a pool."""
    return limits(**{"encoder_replay": True, "prefix_cache": True} | given)


def space_of(model: LoadedModel, tenant: str = "", **given: Any) -> Namespace:
    return namespace(model, returning(**given), tenant, "tiny")


class Server:
    """An engine, and the logits of the last row of every step of its last request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: list[torch.Tensor] = []
        forward = engine._scheduler._forward

        def watched(extends: Sequence[Extend]) -> Output:
            output = forward(extends)
            self.seen += [logits[-1] for logits in output.logits]
            return output

        engine._scheduler._forward = watched  # type: ignore[assignment] # looks in between

    async def generate(self, prompt: Prompt, new: int = 3) -> list[Step]:
        self.seen.clear()
        return [step async for step in self.engine.generate("g", prompt, replace(SILENT, max_new_tokens=new))]

    async def prefill(self, prompt: Prompt, new: int = 3) -> tuple[Handover, list[Piece]]:
        self.seen.clear()
        pieces: list[Piece] = []
        return await self.engine.prefill("p", prompt, replace(SILENT, max_new_tokens=new), pieces.append), pieces

    async def resume(self, prompt: Prompt, handover: Handover, pieces: list[Piece], new: int = 3) -> list[Step]:
        self.seen.clear()
        sampling, blind = replace(SILENT, max_new_tokens=new), replace(prompt, images=())
        return [step async for step in self.engine.resume("d", blind, sampling, handover, pieces)]

    @property
    def adopted(self) -> int:
        return self.engine.replay().adopted


@asynccontextmanager
async def served(model: LoadedModel, stores: Stores, **given: Any) -> AsyncIterator[Server]:
    """A prefill or aggregated server."""
    engine = Engine(model, returning(**given), stores)
    await engine.start()
    try:
        yield Server(engine)
    finally:
        await engine.stop()
        assert idle(engine)
        check_clean(memory_of(engine))


class Reference:
    """What an engine of these settings must compute, step by step, if nothing is shared."""

    def __init__(self, model: LoadedModel, **given: Any) -> None:
        self.model, self.bounds = model, returning(**given)
        self.rerun = WINDOW if self.bounds.replay else 1

    def uninterrupted(self, prompt: Prompt, new: int, at: int = 0) -> list[torch.Tensor]:
        """Logits behind `at` of a run that nothing interrupted but a cut between two chunks there."""
        loop = self._until(prompt, at)
        first = at + (max(self.chunk, self.rerun) if at else self.chunk)
        loop.answer(loop.through([*range(first, len(prompt.token_ids), self.chunk), len(prompt.token_ids)]), new - 1)
        return loop.seen

    def replayed(self, prompt: Prompt, new: int, hit: int) -> list[torch.Tensor]:
        """Logits behind `hit` of a run that has no window before it and runs the rows of one again."""
        loop = self._until(prompt, hit)
        end, replayed = len(prompt.token_ids), min(hit, WINDOW)
        stops = [*range(hit + self.chunk, end, self.chunk), end]
        loop.answer(loop.through(stops, replayed), new - 1)
        return loop.seen

    @property
    def chunk(self) -> int:
        return self.bounds.chunked_prefill_size

    def floor(self, tokens: int) -> int:
        """The page boundary at or before."""
        size = self.bounds.page_size
        return max(0, tokens) // size * size

    def adopts(self, ran: int, tokens: int) -> int:
        """Where a prompt of this length begins if another server has run this many tokens of it."""
        return self.floor(min(self.floor(ran), tokens - self.rerun))

    def replays(self, ran: int, tokens: int) -> int:
        """Where it begins without a window."""
        return self.floor(min(self.floor(ran), tokens - 1))

    def _until(self, prompt: Prompt, at: int) -> Loop:
        replay = PRESETS[self.bounds.replay] if self.bounds.replay else None
        loop = Loop(self.model, prompt, replay, self.bounds.page_size, self.bounds.cache_type)
        if at:
            loop.through([*range(self.chunk, at, self.chunk), at])
            loop.seen.clear()
        return loop


def same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Bit for bit."""
    return len(left) == len(right) and all(a.equal(b) for a, b in zip(left, right, strict=True))


def grown(prompt: Prompt, message: Sequence[int], words: int, rows: int = 0, seed: int = 0) -> Prompt:
    """The next turn: the answer, perhaps a picture, and more words."""
    before = [*prompt.token_ids, *message]
    shown = [picture(len(before), rows, seed)] if rows else []
    return replace(prompt, token_ids=[*before, *[258] * rows, *text(words, seed)], images=[*prompt.images, *shown])

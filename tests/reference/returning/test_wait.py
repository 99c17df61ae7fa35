"""What a prompt waits for, how long, and what a store that fails or hangs costs: never a request."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from typing_extensions import override

from epd_workers.reference.cache.disk import StoredPage
from epd_workers.reference.engine import prefetch
from epd_workers.reference.engine.request import Aborted, Prompt
from epd_workers.reference.engine.store import Stores
from epd_workers.swapool.connection import Connection
from epd_workers.swapool.header import Window
from epd_workers.swapool.memory import Memory
from epd_workers.swapool.metrics import Metrics
from tests.reference.returning.deployment import SILENT, Reference, Windows, grown, same, served, space_of
from tests.support.polling import eventually
from tests.support.reference.engines import idle, memory_of, text
from tests.support.reference.small import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from epd_workers.reference.engine.store import WindowLookup
    from epd_workers.reference.model.loaded import LoadedModel
    from tests.reference.returning.deployment import Server

BOUNDS: dict[str, Any] = {"replay": "0.5.23", "chunked_prefill_size": 16}
TALK = Prompt(text(33, 1))
TURN = grown(TALK, [], 12, seed=2)
SHORT = Prompt(text(5, 3))
AT = 32


class Gate(Memory):
    """A pool's server on another machine, which answers once it may."""

    local: ClassVar[bool] = False  # type: ignore[misc] # the pool asks in threads of its own

    def __init__(self) -> None:
        super().__init__(64 << 20)
        self.may = threading.Event()
        self.may.set()

    @override
    def read(self, key: str, deadline: float) -> tuple[bytes, bytes] | None:
        self.may.wait(10)
        return super().read(key, deadline)


class Distant(Windows):
    """A pool behind a gate."""

    def __init__(self, model: LoadedModel, deadline: float) -> None:
        self.gate = Gate()
        super().__init__(space_of(model, **BOUNDS), self.gate, deadline=deadline)

    def close(self) -> None:
        self.gate.may.set()
        assert self.pool.close(10)


def tokens(steps: Sequence[Any]) -> list[int]:
    return [step.token_id for step in steps]


async def cold(model: LoadedModel, prompt: Prompt) -> list[int]:
    async with served(model, Stores(), **BOUNDS) as server:
        return tokens(await server.generate(prompt))


def threads_now() -> int:
    return sum(not thread.name.startswith("asyncio") for thread in threading.enumerate())


async def asleep(server: Server) -> None:
    """Nothing runs while a prompt waits: not even the thread."""
    steps, began = server.engine.load().steps, time.process_time()
    await asyncio.sleep(0.2)
    assert server.engine.load().steps == steps
    assert time.process_time() - began < 0.1


async def test_others_run_while_one_waits_and_it_goes_on_as_soon_as_the_answer_comes(model: LoadedModel) -> None:
    windows = Distant(model, deadline=60.0)
    async with served(model, Stores(windows), **BOUNDS) as server:
        await server.prefill(TALK)
        assert windows.pool.drain(10)
        windows.gate.may.clear()
        waiting = asyncio.create_task(server.generate(TURN))
        await eventually(lambda: bool(windows.asked))
        short = server.engine.generate("short", SHORT, SILENT)
        assert len([step async for step in short]) == 3
        await asleep(server)
        assert not waiting.done()
        server.seen.clear()
        windows.gate.may.set()
        assert (await waiting)[0].cached_tokens == AT
        assert server.adopted == 1
        assert same(server.seen, Reference(model, **BOUNDS).uninterrupted(TURN, 3, AT))
    windows.close()


async def test_a_prompt_waits_no_longer_than_the_deadline(model: LoadedModel) -> None:
    windows = Distant(model, deadline=0.5)
    async with served(model, Stores(windows), **BOUNDS) as server:
        await server.prefill(TALK)
        assert windows.pool.drain(10)
        windows.gate.may.clear()
        began = time.monotonic()
        waiting = asyncio.create_task(server.generate(TURN, new=1))
        await asleep(server)
        assert (await waiting)[0].cached_tokens == AT
        assert 0.4 < time.monotonic() - began < 5
        assert (server.adopted, windows.ran_again) == (0, WINDOW)
        assert same(server.seen, Reference(model, **BOUNDS).replayed(TURN, 1, AT))
    windows.close()


async def test_a_prompt_that_queues_is_looked_up_meanwhile(model: LoadedModel) -> None:
    windows = Distant(model, deadline=60.0)
    async with served(model, Stores(windows), **BOUNDS, max_running_requests=1) as server:
        await server.prefill(TALK)
        assert windows.pool.drain(10)
        first = server.engine.generate("first", SHORT, replace(SILENT, max_new_tokens=60))
        await anext(first)
        queued = asyncio.create_task(server.generate(TURN))
        await eventually(lambda: server.engine.load().waiting == 1 and bool(windows.asked))
        await first.aclose()
        assert (await queued)[0].cached_tokens == AT
        assert server.adopted == 1
    windows.close()


@pytest.mark.parametrize("page_size", [4, 6, 16])
async def test_a_fork_does_not_run_what_another_has_run_while_it_queued(model: LoadedModel, page_size: int) -> None:
    bounds = BOUNDS | {"page_size": page_size}
    windows, reference = Windows(space_of(model, **bounds)), Reference(model, **bounds)
    paper = grown(TALK, [], 70, seed=2)
    async with served(model, Stores(windows), **bounds, max_running_requests=1) as server:
        await server.prefill(TALK)
        forks = [server.engine.generate(str(seed), grown(paper, [], 3, seed=seed), SILENT) for seed in (8, 9)]
        first, second = await asyncio.gather(*(anext(fork) for fork in forks))
        assert [key.position for key in windows.asked] == [reference.floor(33)] * 2
        assert (first.cached_tokens, second.cached_tokens) == (reference.floor(33), reference.floor(103))
        assert (server.adopted, windows.ran_again) == (1, WINDOW)
        for fork in forks:
            await fork.aclose()


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("end", ["abort", "stop"])
async def test_who_is_aborted_while_waiting_leaves_nothing(model: LoadedModel, end: str, queued: bool) -> None:
    windows = Distant(model, deadline=60.0)
    async with served(model, Stores(windows), **BOUNDS, max_running_requests=1) as server:
        await server.prefill(TALK)
        assert windows.pool.drain(10)
        threads = threads_now()
        windows.gate.may.clear()
        before = server.engine.generate("first", TURN, SILENT) if queued else None
        waiting = asyncio.create_task(server.prefill(TURN))
        await eventually(lambda: len(windows.asked) == 1 + queued)
        if end == "stop":
            await server.engine.stop()
        else:
            server.engine.abort("p")
        with pytest.raises(Aborted):
            await waiting
        if before is not None:
            await before.aclose()
        assert idle(server.engine)
        assert windows.pool.metrics.registry.get_sample_value("swapool_get_total", {"result": "timeout"}) == 1 + queued
        windows.gate.may.set()
        if end == "abort":
            assert len(await server.generate(SHORT)) == 3
        assert threads_now() <= threads
    windows.close()


class Hanging:
    """Pages that never come."""

    ready = False
    pages: ClassVar[Sequence[StoredPage]] = ()

    def __init__(self) -> None:
        self.asked = 0

    def fetch(self, chains: Sequence[bytes], done: Callable[[], None]) -> Hanging:
        self.asked += len(chains)
        return self

    def put(self, chain: bytes, data: bytes, *, replayed: bool) -> bool:
        return False


async def test_pages_that_never_come_are_not_waited_for(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "PATIENCE", 0.3)
    pages, expected = Hanging(), await cold(model, TURN)
    async with served(model, Stores(Windows(space_of(model, **BOUNDS)), pages), **BOUNDS) as server:
        began = time.monotonic()
        waiting = asyncio.create_task(server.generate(TURN))
        await eventually(lambda: pages.asked == 11)
        assert tokens(await waiting) == expected
        assert 0.2 < time.monotonic() - began < 5
        aborted = asyncio.create_task(server.prefill(Prompt(text(30, 9))))
        await eventually(lambda: pages.asked == 18)
        server.engine.abort("p")
        with pytest.raises(Aborted):
            await aborted


async def test_a_window_without_its_pages_is_ignored(model: LoadedModel) -> None:
    """Neither those that were never here, nor those that went while the window was on its way."""
    windows, expected = Distant(model, deadline=60.0), await cold(model, TURN)
    async with served(model, Stores(windows), **BOUNDS) as server:
        await server.prefill(TALK)
        assert windows.pool.drain(10)
        async with served(model, Stores(windows), **BOUNDS) as other:
            assert tokens(await other.generate(TURN)) == expected
            assert (other.adopted, windows.asked) == (0, [])
        windows.gate.may.clear()
        waiting = asyncio.create_task(server.generate(TURN))
        await eventually(lambda: bool(windows.asked))
        with server.engine._scheduler._changed:
            memory_of(server.engine).clear()
        windows.gate.may.set()
        steps = await waiting
        assert (tokens(steps), steps[0].cached_tokens, server.adopted) == (expected, 0, 0)
    windows.close()


class Faulty:
    """What one call of fails, or gives what cannot be used."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.deadline = time.monotonic() + 60

    def fail(self, call: str) -> None:
        if self.fault == call:
            raise RuntimeError(f"{call} fails")


class FaultyWindows(Faulty):
    ready = True

    def __init__(self, fault: str, inner: Windows) -> None:
        super().__init__(fault)
        self.inner = inner

    @property
    def active(self) -> bool:
        self.fail("active")
        return True

    def begin(self, chain: bytes, position: int, done: Callable[[], None]) -> WindowLookup:
        self.fail("begin")
        lookup = self.inner.begin(chain, position, done)
        return self if self.fault in {"take", "window"} else lookup

    def take(self) -> Window:
        self.fail("take")
        return Window(b"short", replayed=False, age=0.0)

    def put(self, chain: bytes, position: int, data: bytes, *, replayed: bool) -> None:
        self.fail("put")
        self.inner.put(chain, position, data, replayed=replayed)

    def replayed(self, tokens: int) -> None:
        self.fail("count")

    def avoided(self, tokens: int) -> None:
        self.fail("count")


class FaultyPages(Faulty):
    @property
    def ready(self) -> bool:
        self.fail("ready")
        return True

    @property
    def pages(self) -> Sequence[StoredPage]:
        self.fail("pages")
        return [StoredPage(b"short", replayed=False)] * 9

    def fetch(self, chains: Sequence[bytes], done: Callable[[], None]) -> FaultyPages:
        self.fail("fetch")
        done()
        return self

    def put(self, chain: bytes, data: bytes, *, replayed: bool) -> bool:
        self.fail("put page")
        return True


HARMLESS = ("", "count", "fetch", "ready", "pages")


@pytest.mark.parametrize("fault", ["active", "begin", "take", "window", "put", "put page", *HARMLESS])
async def test_a_store_that_fails_fails_no_request(model: LoadedModel, fault: str) -> None:
    windows = FaultyWindows(fault, Windows(space_of(model, **BOUNDS)))
    async with served(model, Stores(windows, FaultyPages(fault)), **BOUNDS) as server:
        assert len(await server.generate(TALK, new=1)) == 1
        steps = await server.generate(TURN)
        reference = Reference(model, **BOUNDS)
        if server.adopted:
            assert same(server.seen, reference.uninterrupted(TURN, 3, AT))
        else:
            assert same(server.seen, reference.replayed(TURN, 3, steps[0].cached_tokens))
        assert server.adopted == (fault in HARMLESS)


async def test_the_pool_comes_and_goes_while_an_engine_runs(model: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "pool.json"
    pool = Connection(file, space_of(model, **BOUNDS), Metrics(), remote_only=False, period=0.01)
    adopted = []
    async with served(model, Stores(pool), **BOUNDS) as server:
        for present, prompt in (
            *((True, TALK), (True, TURN), (False, grown(TURN, [], 12, seed=5))),
            *((True, SHORT), (True, grown(SHORT, [], 20, seed=6)), (True, grown(SHORT, [], 40, seed=6))),
        ):
            (tmp_path / "new").write_text(json.dumps({"address": "memory:?bytes=9999999"} if present else {}))
            (tmp_path / "new").rename(file)
            await eventually(lambda wanted=present: pool.active == wanted)  # type: ignore[misc]
            await server.generate(prompt, new=1)
            adopted.append(server.adopted)
    assert adopted == [0, 1, 1, 1, 2, 3]
    pool.close()

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epd_operator.runtime.queue import BASE_SECONDS, CALM_SECONDS, GATHER_SECONDS, LIMIT_SECONDS, Closed, WorkQueue

if TYPE_CHECKING:
    from tests.support.virtual_time import Virtual


def longest(_low: float, high: float) -> float:
    return high


def test_a_key_is_in_line_once(virtual: Virtual) -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        for _ in range(3):
            queue.add("a")
        queue.add("b")
        assert [await queue.get(), await queue.get()] == ["a", "b"]
        assert len(queue) == 0

    virtual(main())


def test_an_event_during_processing_runs_the_key_once_more_and_not_beside_itself(virtual: Virtual) -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0
        queue.done("a")
        assert await queue.get() == "a"
        queue.done("a")
        assert len(queue) == 0

    virtual(main())


def test_success_ends_the_back_off(virtual: Virtual) -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(uniform=longest)
        loop = asyncio.get_running_loop()
        waits = []
        for _ in range(4):
            queue.retry("a")
            before = loop.time()
            key = await queue.get()
            waits.append(loop.time() - before)
            queue.done(key)
        assert waits == pytest.approx([BASE_SECONDS * 2**power for power in range(4)])
        queue.forget("a")
        assert queue.retry("a") == pytest.approx(BASE_SECONDS)

    virtual(main())


def test_back_off_is_bounded() -> None:
    async def main() -> list[float]:
        queue: WorkQueue[str] = WorkQueue(uniform=longest)
        actual = [queue.retry("a") for _ in range(200)]
        queue.close()
        return actual

    actual = asyncio.run(main())
    assert actual[:4] == [BASE_SECONDS * 2**power for power in range(4)]
    assert max(actual) == LIMIT_SECONDS == actual[-1]


def test_full_jitter_spreads_between_nothing_and_the_whole(virtual: Virtual) -> None:
    async def main() -> list[float]:
        queue: WorkQueue[int] = WorkQueue()
        return [queue.retry(key) for key in range(200)]

    actual = virtual(main())
    assert min(actual) < 0.2 * BASE_SECONDS
    assert max(actual) > 0.8 * BASE_SECONDS
    assert max(actual) <= BASE_SECONDS


def test_events_around_a_failing_key_do_not_hurry_it_but_a_new_spec_does(virtual: Virtual) -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(uniform=longest)
        loop = asyncio.get_running_loop()
        for _ in range(9):
            queue.retry("a")
            assert await queue.get() == "a"
            queue.done("a")
        queue.retry("a")
        start = loop.time()
        queue.add("a")
        assert len(queue) == 0
        assert await queue.get() == "a"
        assert loop.time() - start == pytest.approx(CALM_SECONDS)
        queue.done("a")
        queue.retry("a")
        start = loop.time()
        queue.add("a", urgent=True)
        assert await queue.get() == "a"
        assert loop.time() == start
        assert queue.failures("a") == 0

    virtual(main())


def test_a_burst_of_events_is_one_run(virtual: Virtual) -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(uniform=longest)
        loop = asyncio.get_running_loop()
        for _ in range(20):
            queue.gather("a")
            await asyncio.sleep(GATHER_SECONDS / 30)
        assert len(queue) == 0
        await queue.get()
        assert loop.time() == pytest.approx(GATHER_SECONDS)
        queue.done("a")
        await asyncio.sleep(10)
        assert len(queue) == 0
        for _ in range(9):
            queue.retry("a")
        queue.gather("a")
        before = loop.time()
        await queue.get()
        assert loop.time() - before == pytest.approx(BASE_SECONDS)  # the first back-off was the soonest wish

    virtual(main())


def test_the_sooner_of_two_timers_counts(virtual: Virtual) -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        loop = asyncio.get_running_loop()
        queue.add_after("a", 30)
        queue.add_after("a", 5)
        queue.add_after("a", 60)
        await queue.get()
        assert loop.time() == pytest.approx(5)
        queue.done("a")
        await asyncio.sleep(100)
        assert len(queue) == 0

    virtual(main())


def test_close_wakes_the_idle_and_drain_waits_for_the_busy(virtual: Virtual) -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        key = await queue.get()
        idle = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.close()
        with pytest.raises(Closed):
            await idle
        assert not await queue.drain(1)
        asyncio.get_running_loop().call_later(2, queue.done, key)
        assert await queue.drain(10)
        queue.add("b")
        assert len(queue) == 0

    virtual(main())


def test_a_cancelled_waiter_passes_its_wake_up_on(virtual: Virtual) -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add("a")
        first.cancel()
        assert await second == "a"

    virtual(main())


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "urgent", "gather", "after", "wait"]), st.integers(0, 3), st.floats(0, 3)),
    max_size=60,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])  # busy machines
@given(ACTIONS, st.integers(1, 4), st.lists(st.booleans(), max_size=8), st.integers(0, 1 << 32))
def test_no_wish_is_lost_and_no_key_runs_beside_itself(
    virtual: Virtual, actions: list[tuple[str, int, float]], workers: int, failing: list[bool], seed: int
) -> None:
    """For any sequence of events and failures: every wish is followed by a complete run that began after it."""

    jitter = random.Random(seed)

    async def main() -> None:
        queue: WorkQueue[int] = WorkQueue(uniform=jitter.uniform)
        loop = asyncio.get_running_loop()
        wished: dict[int, float] = {}
        finished: dict[int, float] = {}
        running: set[int] = set()
        outcomes = iter(failing)

        async def work() -> None:
            while True:
                try:
                    key = await queue.get()
                except Closed:
                    return
                assert key not in running
                running.add(key)
                began = loop.time()
                await asyncio.sleep(jitter.uniform(0, 0.5))
                running.discard(key)
                if next(outcomes, False):
                    queue.retry(key)
                else:
                    queue.forget(key)
                    finished[key] = began
                queue.done(key)

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        for action, key, seconds in actions:
            if action == "wait":
                await asyncio.sleep(seconds)
                continue
            if action == "after":
                queue.add_after(key, seconds)
                wished[key] = max(wished.get(key, 0.0), loop.time())
            elif action == "gather":
                queue.gather(key)
                wished[key] = loop.time()
            else:
                queue.add(key, urgent=action == "urgent")
                wished[key] = loop.time()
        await asyncio.sleep(2000)
        assert {key for key in wished if finished.get(key, -1.0) < wished[key]} == set()
        assert not running
        queue.close()
        await asyncio.gather(*tasks)

    virtual(main())

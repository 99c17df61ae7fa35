"""What holds for every engine, shown with those in this process."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import pytest

from epd_workers.swapool.address import engine
from epd_workers.swapool.breaker import Breaker
from epd_workers.swapool.engine import Full, Oversize, Unavailable
from epd_workers.swapool.header import seal
from epd_workers.swapool.pool import DEPTH, READERS, WRITERS, WindowPool
from tests.support.polling import until
from tests.support.swapool.pools import use_at_once
from tests.support.swapool.windows import (
    DEADLINE,
    RELEASED,
    SLACK,
    SPACE,
    Never,
    count,
    fill,
    key,
    resident,
    rows,
    threads,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.swapool.pools import Opening

MEMORY = "memory:?bytes=100000000"


@dataclass
class Faulty:
    """An engine whose calls do what a test wants."""

    reading: Callable[[], tuple[bytes, bytes] | None] = lambda: None
    writing: Callable[[], None] = lambda: None
    local: bool = False
    name: str = "faulty"
    closed: list[str] = field(default_factory=list)

    def sessions(self, count: int, size: int) -> Sequence[Faulty]:
        return [self] * count

    def open(self, deadline: float) -> None:
        raise Unavailable("not yet")

    def read(self, key: str, deadline: float) -> tuple[bytes, bytes] | None:
        return self.reading()

    def write(self, key: str, head: bytes, data: bytes, ttl: float, deadline: float) -> None:
        self.writing()

    def close(self) -> None:
        self.closed.append("closed")


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def blocking(gate: threading.Event) -> Callable[[], None]:
    def block() -> None:
        gate.wait()

    return block


def test_there_and_back(opened: Opening) -> None:
    pool = opened(MEMORY)
    names = fill(pool, 3)
    assert [pool.get(name, DEADLINE) for name in names] == [rows(name) for name in names]
    assert pool.get(key(99), DEADLINE) is None
    assert count(pool, "put", "stored") == count(pool, "get", "hit") == 3
    assert count(pool, "get", "miss") == 1
    assert value(pool, "swapool_bytes_total", dir="get") == value(pool, "swapool_bytes_total", dir="put") == 811_008
    assert value(pool, "swapool_window_age_seconds_count") == 3


def test_replayed_windows_say_so(opened: Opening) -> None:
    pool = opened(MEMORY)
    pool.put(key(1), rows(key(1)), 300, replayed=True)
    window = pool.begin(key(1), DEADLINE).take()
    assert window
    assert window.replayed


def test_many_at_once(opened: Opening) -> None:
    use_at_once(opened(MEMORY), rounds=100)


def test_expiry(opened: Opening) -> None:
    now = [1000.0]
    pool = opened(MEMORY, clock=lambda: now[0])
    fill(pool, 1, ttl=300)
    now[0] = 1301.0
    assert pool.get(key(0), DEADLINE) is None
    assert count(pool, "get", "expired") == 1


@pytest.mark.parametrize("error", [Unavailable("down"), OSError("odd"), RuntimeError("a defect"), MemoryError()])
def test_nothing_is_ever_raised(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    faulty = Faulty(reading=failing(error), writing=failing(error))
    pool = WindowPool(faulty, SPACE.largest)
    assert pool.get(key(1), 1.0) is None
    pool.put(key(1), rows(key(1)), 300)
    assert pool.drain(1)
    assert count(pool, "get", "error") == count(pool, "put", "error") == 1
    assert pool.fault
    assert pool.get(key(1), 1.0) is None
    pool.put(key(1), rows(key(1)), 300)
    assert count(pool, "get", "breaker") == count(pool, "put", "breaker") == 1
    assert value(pool, "swapool_breaker_open", operation="get") == 1
    assert pool.close()


@pytest.mark.parametrize(
    ("data", "ttl"), [(b"short", 300), (bytes(270337), 300), (None, 0), (None, -1), (None, math.nan)]
)
def test_what_makes_no_window_is_dropped(opened: Opening, data: bytes | None, ttl: float) -> None:
    pool = opened(MEMORY)
    pool.put(key(1), rows(key(1)) if data is None else data, ttl)
    pool.put(key(2, RELEASED), rows(key(2, RELEASED)), 300)
    assert pool.get(key(1), DEADLINE) is None
    assert count(pool, "put", "error") == 2
    assert not pool.fault


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("deadline", [0, -1, math.nan, -math.inf])
def test_no_time_is_not_the_server_s_fault(deadline: float, local: bool) -> None:
    pool = WindowPool(Faulty(local=local), SPACE.largest)
    begun = time.perf_counter()
    assert pool.get(key(1), deadline) is None
    assert time.perf_counter() - begun < SLACK
    assert count(pool, "get", "timeout") == 1
    assert not pool.fault
    pool.close()


def test_full_is_not_the_server_s_fault() -> None:
    pool = WindowPool(Faulty(writing=failing(Full("no room"))), SPACE.largest)
    for number in range(3):
        pool.put(key(number), rows(key(number)), 300)
    assert pool.drain(1)
    assert count(pool, "put", "full") == 3
    assert not pool.fault
    pool.close()


def test_oversize_is_a_mismatch() -> None:
    pool = WindowPool(Faulty(reading=failing(Oversize())), SPACE.largest)
    assert pool.get(key(1), 1.0) is None
    assert count(pool, "get", "mismatch") == 1
    assert not pool.fault
    pool.close()


def test_one_verdict_per_lookup() -> None:
    """What was not there when the batch was built is not there later in the same request either."""
    gate = threading.Event()
    name = key(1)
    answer = (seal(name, rows(name), ttl=300, created=time.time(), replayed=False), rows(name))

    def read() -> tuple[bytes, bytes]:
        gate.wait()
        return answer

    pool = WindowPool(Faulty(reading=read), SPACE.largest)
    early, patient = pool.begin(name, 5.0), pool.begin(name, 5.0)
    until(lambda: value(pool, "swapool_bounce_in_use") == 2)
    assert not early.ready
    assert early.take() is None
    gate.set()
    assert patient.wait() is not None
    assert pool.close()
    assert early.take() is early.wait() is None
    assert patient.take() is patient.wait() is not None
    assert count(pool, "get", "timeout") == count(pool, "get", "hit") == count(pool, "get", "late") == 1
    assert not pool.fault, "the caller was in a hurry; the deadline had not passed"


def test_an_answer_after_the_deadline_is_too_late_though_nobody_has_looked() -> None:
    gate = threading.Event()
    pool = WindowPool(Faulty(reading=blocking(gate)), SPACE.largest)
    lookup = pool.begin(key(1), DEADLINE)
    until(lambda: time.monotonic() > lookup.deadline)
    gate.set()
    until(lambda: lookup.ready)
    assert count(pool, "get", "timeout") == 1
    assert pool.fault == "the answer came after the deadline"
    pool.close()


def test_only_an_answer_says_that_the_server_is_well_again() -> None:
    """Neither who leaves early does, nor who finds no room in the line."""
    gate = threading.Event()
    pool = WindowPool(
        Faulty(reading=blocking(gate)), SPACE.largest, breakers=partial(Breaker, first=0.02, ceiling=0.02)
    )
    for number in range(READERS):
        pool.begin(key(number), 60.0)
    until(lambda: value(pool, "swapool_bounce_in_use") == READERS)
    for number in range(DEPTH - 2):
        pool.begin(key(number), 60.0)
    assert pool.get(key(1), 0.005) is None
    for result in ("timeout", "busy"):
        before = count(pool, "get", result)
        until(lambda: pool.begin(key(1), 60.0).take() is None and count(pool, "get", result) > before)  # noqa: B023
        assert pool.fault
    gate.set()
    until(lambda: pool.get(key(1), 5.0) is None and not pool.fault)
    pool.close()


def test_a_lookup_waits_for_its_deadline_and_no_longer() -> None:
    gate = threading.Event()
    pool = WindowPool(Faulty(reading=blocking(gate)), SPACE.largest, breakers=Never)

    def waited() -> float:
        begun = time.perf_counter()
        assert pool.get(key(1), DEADLINE) is None
        return time.perf_counter() - begun

    assert any(0.8 * DEADLINE < median(waited() for _ in range(11)) <= DEADLINE for _ in range(5))
    gate.set()
    pool.close()


def test_a_storm_of_timeouts_leaves_nothing_behind() -> None:
    """1,000 lookups and 1,000 puts of a server that hangs: the same threads, the same buffers, and all come back."""
    gate = threading.Event()
    before = threads()
    pool = WindowPool(Faulty(reading=blocking(gate), writing=blocking(gate)), SPACE.largest, breakers=Never)
    made = threads() - before
    assert made == READERS + WRITERS
    data = rows(key(0))
    gc.collect()
    size = resident()
    for number in range(1000):
        assert pool.get(key(number), 0.002) is None
        pool.put(key(number % 50), bytes(bytearray(data)), 300)
    assert threads() - before == made
    assert resident() - size < (DEPTH + WRITERS + 8) * SPACE.largest
    assert value(pool, "swapool_bounce_in_use") == made
    assert count(pool, "get", "timeout") + count(pool, "get", "busy") == 1000
    assert count(pool, "put", "busy") == 1000 - DEPTH - WRITERS
    gate.set()
    assert pool.drain(5)
    assert value(pool, "swapool_bounce_in_use") == 0
    assert count(pool, "get", "late") == READERS
    assert pool.close()
    assert threads() == before


def test_closing_does_not_wait_for_what_hangs() -> None:
    gate = threading.Event()
    faulty = Faulty(reading=blocking(gate))
    pool = WindowPool(faulty, SPACE.largest)
    assert pool.get(key(1), 0.005) is None
    begun = time.perf_counter()
    assert not pool.close(0.1)
    assert time.perf_counter() - begun < 0.1 + SLACK
    assert pool.get(key(1), 0.005) is None
    gate.set()


@pytest.mark.parametrize(
    "address",
    ["", "memory:", "memory:?bytes=x", "valkey:", "mooncake://host", "mooncake://host:1?x=1", "http://host:80"],
)
def test_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="give memory:"):
        engine(address)


def test_memory_is_as_fast_as_memory(opened: Opening) -> None:
    """A window of released size in at most three times a copy of it, either way."""
    pool = opened("memory:?bytes=100000000", RELEASED)
    name = key(1, RELEASED)
    data = rows(name)

    def timed(what: Callable[[], object]) -> float:
        begun = time.perf_counter()
        what()
        return time.perf_counter() - begun

    def ratios() -> tuple[float, float]:
        copies, puts, gets = [], [], []
        for _ in range(100):
            copies.append(timed(lambda: bytes(bytearray(data))))
            puts.append(timed(lambda: pool.put(name, data, 300)))
            gets.append(timed(lambda: pool.get(name, DEADLINE)))
        return median(puts) / median(copies), median(gets) / median(copies)

    assert any(max(ratios()) <= 3 for _ in range(5))


def test_the_log_names_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    pool = WindowPool(Faulty(reading=failing(Unavailable("no route"))), SPACE.largest)
    with caplog.at_level(logging.WARNING):
        pool.get(key(1), 1.0)
    pool.close()
    assert caplog.messages == ["window pool (faulty), lookups: no route; answering without it, asking again in 0.5 s"]

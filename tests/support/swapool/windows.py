"""Windows to try a pool with, and what to look at while it is tried."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from typing_extensions import override

from epd_workers.swapool.breaker import Breaker
from epd_workers.swapool.key import Key, Namespace

if TYPE_CHECKING:
    from epd_workers.swapool.pool import WindowPool

DEADLINE = 0.02
# What a scheduler may add when other programs have both cores; no part of the promise, only of the yardstick. The
# servers' own patience, which must not show, is ten times that.
SLACK = 0.4
PATIENT = 5.0
SPACE = Namespace(
    model="small",
    checkpoint="5f1e",
    engine="reference 0.1.0",
    layout="a1b2",
    row_format="fp8",
    first_layer=0,
    layers=4,
    window=128,
    row_bytes=528,
    page_size=64,
)
RELEASED = replace(SPACE, layers=20, row_bytes=584)


def key(number: int, space: Namespace = SPACE, position: int = 1024) -> Key:
    return Key(space, hashlib.sha256(b"%d" % number).digest(), position)


def rows(name: Key) -> bytes:
    """The rows of this window and of no other."""
    return random.Random(name.text).randbytes(name.size)


def fill(pool: WindowPool, count: int, ttl: float = 300) -> list[Key]:
    names = [key(number) for number in range(count)]
    for name in names:
        pool.put(name, rows(name), ttl)
        assert pool.drain(PATIENT)
    return names


def lookups(pool: WindowPool, names: list[Key], count: int, pause: float = 0.0) -> tuple[list[float], int]:
    """Look windows up one after the other.

    Returns:
        The seconds that each took, sorted, and how many were found. Whatever was found was right.
    """
    seconds, actual = [], 0
    for number in range(count):
        name = names[number % len(names)]
        begun = time.perf_counter()
        data = pool.get(name, DEADLINE)
        seconds.append(time.perf_counter() - begun)
        actual += data is not None
        assert data is None or data == rows(name)
        time.sleep(pause)
    return sorted(seconds), actual


def keeps_to_the_deadline(seconds: list[float]) -> None:
    """Lookups took these, sorted: none waited past its deadline, whatever the server did."""
    assert seconds[int(0.99 * len(seconds)) - 1] <= DEADLINE
    assert seconds[-1] <= DEADLINE + SLACK


def stays_out_of_the_way(pool: WindowPool, names: list[Key]) -> int:
    """400 lookups of a sick server: few wait, none longer than the deadline, nothing fails. Returns those answered."""
    seconds, actual = lookups(pool, names, 400, pause=0.0015)
    keeps_to_the_deadline(seconds)
    # One per period: at 0 and 0.5 s, and a few more if the machine is so busy that this takes long.
    assert sum(each > DEADLINE / 2 for each in seconds) <= 5
    return actual


def count(pool: WindowPool, operation: str, result: str) -> int:
    value = pool.metrics.registry.get_sample_value(f"swapool_{operation}_total", {"result": result})
    assert value is not None
    return int(value)


def value(pool: WindowPool, name: str, **labels: str) -> float:
    actual = pool.metrics.registry.get_sample_value(name, labels)
    assert actual is not None
    return actual


class Never(Breaker):
    """A breaker that never opens, so that every call goes to the server."""

    @override
    def failed(self, ticket: int, reason: str) -> None:
        pass


def threads() -> int:
    return sum(thread.name.startswith("swapool-") for thread in threading.enumerate())


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


texts = st.text(max_size=12)

sizes = st.integers(1, 64)

spaces = st.builds(
    Namespace,
    model=texts,
    checkpoint=texts,
    engine=texts,
    layout=texts,
    row_format=texts,
    first_layer=st.integers(0, 64),
    layers=sizes,
    window=sizes,
    row_bytes=sizes,
    page_size=sizes,
    tenant=texts,
    salt=texts,
)


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

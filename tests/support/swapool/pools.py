"""A pool under test: how it is opened and used, and what must hold of it whatever its servers do."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack, contextmanager
from itertools import count as numbered
from typing import TYPE_CHECKING, Any, Protocol

from tests.support.polling import until
from tests.support.swapool.servers import Supervised
from tests.support.swapool.windows import (
    DEADLINE,
    PATIENT,
    SLACK,
    SPACE,
    count,
    fill,
    key,
    lookups,
    resident,
    rows,
    threads,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from epd_workers.swapool.key import Key, Namespace
    from epd_workers.swapool.pool import WindowPool
    from tests.support.swapool.servers import Server

# Joining takes a while on a busy machine, and the first lookup must not be the one to wait for it.
JOIN = 10.0


class Opening(Protocol):
    """Opens a pool that is closed after the test."""

    def __call__(self, address: str, space: Namespace = SPACE, **options: Any) -> WindowPool: ...


class Running(Protocol):
    """Starts ``epd-swapool``, which ends after the test, with all that it started."""

    def __call__(self, *arguments: str, environment: dict[str, str] | None = None) -> Supervised: ...


@contextmanager
def supervisors(folder: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        numbers = numbered()

        def run(*arguments: str, environment: dict[str, str] | None = None) -> Supervised:
            server = Supervised(folder / f"{arguments[0]}-{next(numbers)}.log", *arguments, environment=environment)
            stack.callback(server.kill)
            return server

        yield run


class Gaps:
    """Finds out for how long no other thread of this process could run."""

    def __init__(self) -> None:
        self._longest = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def longest(self) -> float:
        self._ended.set()
        self._thread.join()
        return self._longest

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(0.002):
            now = time.monotonic()
            self._longest = max(self._longest, now - last)
            last = now


def are_held(pool: WindowPool, names: list[Key]) -> list[bool]:
    data = [pool.get(name, PATIENT) for name in names]
    assert all(each is None or each == rows(name) for each, name in zip(data, names, strict=True))
    return [each is not None for each in data]


def recovered(pool: WindowPool) -> bool:
    pool.put(key(7), rows(key(7)), 300)
    pool.drain(PATIENT)
    return pool.get(key(7), 1.0) == rows(key(7))


def share_a_key(writers: list[WindowPool], reader: WindowPool) -> None:
    """Two prefills store the same conversation at the same time: a reader sees one of the two, whole."""
    name, other = key(1), rows(key(99))
    ended = threading.Event()

    def write(pool: WindowPool, data: bytes) -> None:
        while not ended.is_set():
            pool.put(name, data, 300)
            pool.drain(PATIENT)

    reader.put(name, other, 300)
    reader.drain(PATIENT)
    pairs = zip(writers, (rows(name), other), strict=True)
    running = [threading.Thread(target=write, args=pair) for pair in pairs]
    for each in running:
        each.start()
    seen = [reader.get(name, PATIENT) for _ in range(200)]
    ended.set()
    for each in running:
        each.join()
    assert set(seen) <= {rows(name), other, None}
    assert seen.count(None) < len(seen)
    assert not any("code" in pool.fault for pool in (reader, *writers)), "a race is not the server's fault"


def use_at_once(pool: WindowPool, rounds: int = 60) -> None:
    """Many requests at a time, each with windows of its own and some in common: each gets its own rows or nothing."""
    wrong: list[Key] = []

    def use(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(rounds):
            name = key(chance.randrange(12))
            if chance.random() < 0.3:
                pool.put(name, rows(name), 300)
            elif pool.get(name, PATIENT) not in {None, rows(name)}:
                wrong.append(name)

    users = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]
    for each in users:
        each.start()
    for each in users:
        each.join()
    assert not wrong
    assert count(pool, "get", "hit") > 0
    assert count(pool, "get", "mismatch") == count(pool, "get", "error") == 0


def survives(server: Server, pool: WindowPool) -> None:
    """A server that comes and goes, under four users: no lookup fails or waits, and nothing grows."""
    names = fill(pool, 8)
    seconds: list[float] = []
    hits: list[int] = []
    ended = threading.Event()

    def use() -> None:
        while not ended.is_set():
            taken, actual = lookups(pool, names, 20, pause=0.01)
            seconds.extend(taken)
            hits.append(actual)
            # What was lost is stored again, as an engine that replays does.
            pool.put(names[len(hits) % 8], rows(names[len(hits) % 8]), 300)

    made, size = threads(), resident()
    users = [threading.Thread(target=use) for _ in range(4)]
    for each in users:
        each.start()
    for pause in (1, 3, 10, 31):
        server.freeze()
        time.sleep(pause)
        server.thaw()
        time.sleep(6)
    ended.set()
    for each in users:
        each.join()
    seconds.sort()
    assert seconds[int(0.99 * len(seconds)) - 1] <= DEADLINE
    assert seconds[-1] <= DEADLINE + SLACK
    assert sum(hits) > len(seconds) / 20
    assert threads() == made
    assert resident() - size < 32 << 20
    until(lambda: value(pool, "swapool_bounce_in_use") == 0)

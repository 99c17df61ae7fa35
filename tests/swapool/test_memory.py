from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_workers.swapool.engine import Full
from epd_workers.swapool.memory import OVERHEAD, Memory
from tests.support.swapool.windows import Clock


def test_time_to_live() -> None:
    clock = Clock()
    memory = Memory(10_000, clock)
    memory.write("a", b"h", b"data", 3, 0)
    clock.now = 2.9
    assert memory.read("a", 0) == (b"h", b"data")
    clock.now = 3.0
    assert memory.read("a", 0) is None
    assert memory.used == 0


def test_the_first_to_expire_goes_first() -> None:
    memory = Memory(3 * (OVERHEAD + 102))
    for name, ttl in (("a", 300), ("b", 100), ("c", 200), ("d", 400)):
        memory.write(name, b"h", bytes(100), ttl, 0)
    assert [memory.read(name, 0) is not None for name in "abcd"] == [True, False, True, True]


def test_the_second_writer_wins() -> None:
    memory = Memory(10_000)
    memory.write("a", b"1", b"one", 10, 0)
    memory.write("a", b"2", b"two", 10, 0)
    assert memory.read("a", 0) == (b"2", b"two")
    assert memory.used == OVERHEAD + 5


def test_what_is_larger_than_the_pool() -> None:
    memory = Memory(1000)
    memory.write("a", b"1", b"one", 10, 0)
    with pytest.raises(Full, match="the pool has 1000"):
        memory.write("b", b"1", bytes(1000), 10, 0)
    assert memory.read("a", 0) == (b"1", b"one")


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 900), st.integers(1, 9)), max_size=60))
def test_bytes_add_up_and_stay_below_the_cap(writes: list[tuple[str, int, int]]) -> None:
    clock = Clock()
    memory = Memory(4000, clock)
    for name, size, ttl in writes:
        memory.write(name, b"", bytes(size), ttl, 0)
        clock.now += 1
        assert memory.used <= 4000
        assert memory.read(name, 0) == (None if ttl == 1 else (b"", bytes(size)))
    kept = [memory.read(name, 0) for name in "abcdefgh"]
    assert memory.used == sum(len(entry[1]) + 1 + OVERHEAD for entry in kept if entry)
    memory.close()
    assert memory.used == len(memory) == 0

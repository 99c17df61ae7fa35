"""A real Mooncake Store, well and unwell."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epd_workers.swapool.address import engine
from epd_workers.swapool.header import seal
from epd_workers.swapool.pool import Pool
from tests.ports import free_port
from tests.swapool.servers import MooncakeMaster, MooncakeStore, until
from tests.swapool.test_valkey import are_held, recovered, share_a_key, survives, use_at_once
from tests.swapool.windows import (
    DEADLINE,
    PATIENT,
    SLACK,
    SPACE,
    Never,
    count,
    descriptors,
    fill,
    key,
    rows,
    stays_out_of_the_way,
    threads,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_workers.swapool.key import Key
    from tests.swapool.conftest import Opening

# Joining takes a while on a busy machine, and the first lookup must not be the one to wait for it.
JOIN = 10.0


@pytest.fixture
def join(opened: Opening, master: MooncakeMaster, store: MooncakeStore) -> Callable[..., Pool]:
    def joined(**options: Any) -> Pool:
        pool = opened(f"mooncake://{master.address}", **options)
        until(lambda: recovered(pool), JOIN)
        return pool

    return joined


def helpers(process: int) -> list[int]:
    """The processes that it started to talk to the store."""
    started: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        # Threads come and go meanwhile.
        with contextlib.suppress(FileNotFoundError):
            started += map(int, (task / "children").read_text().split())
    return [each for each in started if b"swapool.agent" in Path(f"/proc/{each}/cmdline").read_bytes()]


def test_there_and_back(join: Callable[..., Pool]) -> None:
    pool = join()
    names = fill(pool, 5)
    assert all(are_held(pool, names))
    assert pool.get(key(99), PATIENT) is None
    pool.put(names[0], rows(key(50)), 300)
    assert pool.drain(PATIENT)
    assert pool.get(names[0], PATIENT) == rows(key(50)), "the second writer wins"
    assert not pool.fault


def test_age_is_checked_where_the_store_knows_none(join: Callable[..., Pool]) -> None:
    now = [time.time() - 400]
    writer = join(clock=lambda: now[0])
    names = fill(writer, 2)
    reader = join()
    assert not any(are_held(reader, names))
    assert count(reader, "get", "expired") == 2


def test_two_writers_of_one_key(join: Callable[..., Pool]) -> None:
    share_a_key([join(), join()], join())


def test_unreachable_at_start(tmp_path: Path, opened: Opening) -> None:
    """Nor does anything else in this process wait: the library, left alone, keeps Python's lock for minutes."""
    port = free_port()
    pool = opened(f"mooncake://127.0.0.1:{port}")
    gaps = Gaps()
    assert stays_out_of_the_way(pool, [key(0)]) == 0
    assert gaps.longest() < SLACK
    until(lambda: "no Mooncake master" in pool.fault)
    master = MooncakeMaster(tmp_path / "master.log", port=port)
    store = MooncakeStore(tmp_path / "store.log", master.address)
    try:
        until(lambda: recovered(pool), JOIN)
    finally:
        store.kill()
        master.kill()


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


def test_store_frozen(join: Callable[..., Pool], store: MooncakeStore) -> None:
    """A call that would hang for 30 s is ended with its process; the next finds a new one."""
    pool = join()
    names = fill(pool, 5)
    store.freeze()
    assert stays_out_of_the_way(pool, names) == 0
    until(lambda: value(pool, "swapool_bounce_in_use") == 0, 3.0)
    store.thaw()
    until(lambda: all(are_held(pool, names)), JOIN)
    assert len(helpers(os.getpid())) == 1


def test_store_killed(join: Callable[..., Pool], store: MooncakeStore, master: MooncakeMaster, tmp_path: Path) -> None:
    pool = join()
    names = fill(pool, 5)
    store.kill()
    assert stays_out_of_the_way(pool, names) == 0
    other = MooncakeStore(tmp_path / "other.log", master.address)
    try:
        until(lambda: recovered(pool), 20.0)
    finally:
        other.kill()


def test_master_frozen(join: Callable[..., Pool], master: MooncakeMaster) -> None:
    pool = join()
    names = fill(pool, 5)
    master.freeze()
    assert stays_out_of_the_way(pool, names) == 0
    master.thaw()
    until(lambda: all(are_held(pool, names)), JOIN)


def test_full(tmp_path: Path, opened: Opening) -> None:
    """Under lease nothing makes room: what is refused is dropped, and the pool is no less well."""
    master = MooncakeMaster(tmp_path / "master.log", lease="60s")
    store = MooncakeStore(tmp_path / "store.log", master.address, 16 << 20)
    try:
        pool = opened(f"mooncake://{master.address}")
        until(lambda: recovered(pool), JOIN)
        names = []
        for number in range(100):
            pool.put(key(number), rows(key(number)), 300)
            pool.drain(PATIENT)
            names.append(key(number))
            are_held(pool, names[-1:])
        assert count(pool, "put", "full") > 20
        assert count(pool, "put", "stored") > 20
        assert not pool.fault
    finally:
        store.kill()
        master.kill()


def test_wrong_answers(join: Callable[..., Pool], master: MooncakeMaster) -> None:
    """What another writer left under our name."""
    pool = join()
    data = rows(key(1))

    def sealed(name: Key, age: float = 0.0) -> bytes:
        return seal(name, data, ttl=300, created=time.time() - age, replayed=False)

    good = sealed(key(1))
    wrong = {
        "bits": (good, rows(key(2))),
        "namespace": (sealed(key(1, SPACE.salted("x"))), data),
        "truncated": (good, data[:-1]),
        "header": (good[:10], b""),
        "future": (sealed(key(1), age=-9), data),
        "large": (good, data + bytes(1 << 18)),
    }
    other = engine(f"mooncake://{master.address}")
    (session,) = other.sessions(1, 1 << 20)
    session.open(time.monotonic() + JOIN)
    for head, body in wrong.values():
        session.write(key(1).text, head, body, 300, time.monotonic() + PATIENT)
        assert pool.get(key(1), PATIENT) is None
    assert (count(pool, "get", "mismatch"), count(pool, "get", "expired")) == (5, 1)
    session.write(key(1).text, good, data, 300, time.monotonic() + PATIENT)
    assert pool.get(key(1), PATIENT) == rows(key(1))
    session.close()
    other.close()


@pytest.mark.nightly
def test_many_at_once(join: Callable[..., Pool]) -> None:
    use_at_once(join(depth=64))


@pytest.mark.nightly
def test_freezes_and_thaws_for_a_minute(join: Callable[..., Pool], store: MooncakeStore) -> None:
    survives(store, join())
    assert len(helpers(os.getpid())) == 1


def test_a_storm_of_timeouts_leaves_nothing_behind(join: Callable[..., Pool], store: MooncakeStore) -> None:
    pool = join(breakers=Never)
    names = fill(pool, 8)
    made, connected = threads(), descriptors()
    store.freeze()
    for number in range(1000):
        assert pool.get(names[number % 8], 0.004) is None
    assert threads() == made
    assert descriptors() <= connected
    store.thaw()
    until(lambda: value(pool, "swapool_bounce_in_use") == 0)
    until(lambda: all(are_held(pool, names)), JOIN)
    assert len(helpers(os.getpid())) == 1


def test_the_helper_dies(join: Callable[..., Pool]) -> None:
    pool = join()
    names = fill(pool, 3)
    os.kill(helpers(os.getpid())[0], signal.SIGKILL)
    assert pool.get(names[0], DEADLINE) is None
    until(lambda: all(are_held(pool, names)), JOIN)


def test_closing_leaves_no_process(opened: Opening, master: MooncakeMaster, store: MooncakeStore) -> None:
    before = descriptors()
    pool = Pool(engine(f"mooncake://{master.address}"), SPACE.largest)
    until(lambda: recovered(pool), JOIN)
    store.freeze()
    pool.get(key(7), DEADLINE)
    assert helpers(os.getpid())
    begun = time.perf_counter()
    pool.close()
    assert time.perf_counter() - begun < 1.0 + 2 * SLACK
    assert not helpers(os.getpid())
    store.thaw()
    until(lambda: descriptors() == before)


ENDING = """
import sys, time
from epd_workers.swapool.address import engine
from epd_workers.swapool.pool import Pool
from tests.swapool.windows import SPACE, key, rows
pool = Pool(engine(sys.argv[1]), SPACE.largest)
while pool.get(key(1), 1.0) is None:
    pool.put(key(1), rows(key(1)), 300)
    pool.drain(5)
print("stored", flush=True)
sys.stdin.readline()
assert pool.get(key(1), 0.05) is None
print("left", flush=True)
"""


@pytest.mark.parametrize("end", ["exit", pytest.param("kill", marks=pytest.mark.nightly)])
def test_the_process_ends_while_a_call_hangs(master: MooncakeMaster, store: MooncakeStore, end: str) -> None:
    """It ends at once and clean, and its helper with it, though nobody closed anything."""
    command = [sys.executable, "-c", ENDING, f"mooncake://{master.address}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine_process:
        try:
            assert engine_process.stdin
            assert engine_process.stdout
            assert engine_process.stdout.readline() == "stored\n"
            (helper,) = helpers(engine_process.pid)
            store.freeze()
            if end == "kill":
                engine_process.kill()
            else:
                engine_process.stdin.write("\n")
                engine_process.stdin.flush()
                assert engine_process.stdout.readline() == "left\n"
            assert engine_process.wait(3) == (-signal.SIGKILL if end == "kill" else 0)
            until(lambda: not Path(f"/proc/{helper}").exists(), 3)
        finally:
            engine_process.kill()
            store.thaw()


def test_the_library_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Opening) -> None:
    """The engine starts all the same; the log and the status say what to install."""
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").touch()
    message = "libibverbs.so.1: cannot open shared object file"
    (tmp_path / "mooncake" / "store.py").write_text(f"raise ImportError({message!r})")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    pool = opened("mooncake://127.0.0.1:1")
    assert pool.get(key(1), PATIENT) is None
    assert message in pool.fault
    assert "libcurl4, libibverbs1 and libnuma1" in pool.fault

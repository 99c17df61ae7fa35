"""A real Valkey server, well and unwell."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from epd_workers.swapool.address import engine
from epd_workers.swapool.header import SIZE, seal
from epd_workers.swapool.pool import Pool
from tests.ports import free_port
from tests.swapool.servers import Server, ValkeyServer, Wire, until
from tests.swapool.windows import (
    DEADLINE,
    PATIENT,
    RELEASED,
    SLACK,
    SPACE,
    Never,
    count,
    descriptors,
    fill,
    key,
    lookups,
    resident,
    rows,
    stays_out_of_the_way,
    threads,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import valkey

    from epd_workers.swapool.key import Key
    from tests.swapool.conftest import Opening


TALKER = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    listener.accept()[0].sendall(b"x" * 4096)
"""


def figures(client: valkey.Valkey, section: str) -> dict[str, Any]:
    reported = client.info(section)
    assert isinstance(reported, dict)
    return reported


@pytest.fixture
def wire(server: ValkeyServer) -> Iterator[Wire]:
    wire = Wire(server.port)
    yield wire
    wire.close()


def are_held(pool: Pool, names: list[Key]) -> list[bool]:
    data = [pool.get(name, PATIENT) for name in names]
    assert all(each is None or each == rows(name) for each, name in zip(data, names, strict=True))
    return [each is not None for each in data]


def test_there_and_back(server: ValkeyServer, opened: Opening) -> None:
    pool = opened(server.url)
    names = fill(pool, 5)
    assert all(are_held(pool, names))
    assert pool.get(key(99), PATIENT) is None
    assert not pool.fault


def test_the_server_is_asked_for_windows_only(server: ValkeyServer, opened: Opening) -> None:
    """No polling: as many commands as lookups and puts, and the server itself forgets what is too old."""
    pool = opened(server.url)
    names = fill(pool, 3, ttl=0.2)
    are_held(pool, names)
    with server.client() as client:
        calls = figures(client, "commandstats")
        own = {"cmdstat_info", "cmdstat_client|setinfo", "cmdstat_config|get"}
        assert {name: calls[name]["calls"] for name in calls.keys() - own} == {"cmdstat_set": 3, "cmdstat_get": 3}
        until(lambda: client.dbsize() == 0)
    assert not any(are_held(pool, names))


def test_a_password_and_a_database(server: ValkeyServer, opened: Opening) -> None:
    with server.client() as client:
        client.config_set("requirepass", "se:cret")
    pool = opened(server.url.replace("//", "//:se%3Acret@") + "/3")
    assert all(are_held(pool, fill(pool, 2)))
    stranger = opened(server.url)
    assert stranger.get(key(0), PATIENT) is None
    assert "NOAUTH" in stranger.fault


def test_unreachable_at_start(tmp_path: Path, opened: Opening) -> None:
    """The pool opens all the same, and is used from the moment when the server is there."""
    port = free_port()
    begun = time.perf_counter()
    pool = opened(f"valkey://127.0.0.1:{port}")
    assert time.perf_counter() - begun < SLACK
    assert stays_out_of_the_way(pool, [key(0)]) == 0
    assert str(port) in pool.fault
    server = ValkeyServer(tmp_path / "late.log", port=port)
    try:
        until(lambda: recovered(pool))
    finally:
        server.kill()


def recovered(pool: Pool) -> bool:
    pool.put(key(7), rows(key(7)), 300)
    pool.drain(PATIENT)
    return pool.get(key(7), 1.0) == rows(key(7))


def test_killed_and_rolled(server: ValkeyServer, tmp_path: Path, opened: Opening) -> None:
    pool = opened(server.url)
    names = fill(pool, 5)
    assert all(are_held(pool, names))
    server.kill()
    assert stays_out_of_the_way(pool, names) == 0
    fresh = ValkeyServer(tmp_path / "fresh.log", port=server.port)
    try:
        until(lambda: recovered(pool))
        assert not any(are_held(pool, names)), "a rolled pool has lost its windows, and says so"
        assert not pool.fault
    finally:
        fresh.kill()


def test_rolled_between_two_lookups(server: ValkeyServer, tmp_path: Path, opened: Opening) -> None:
    """The connections that the old server closed are noticed before they are used: no lookup fails."""
    pool = opened(server.url)
    assert all(are_held(pool, fill(pool, 8)))
    server.kill()
    fresh = ValkeyServer(tmp_path / "fresh.log", port=server.port)
    try:
        assert all(are_held(pool, fill(pool, 8)))
        assert count(pool, "get", "error") == count(pool, "put", "error") == 0
    finally:
        fresh.kill()


def test_frozen(server: ValkeyServer, opened: Opening) -> None:
    pool = opened(server.url)
    names = fill(pool, 5)
    server.freeze()
    assert stays_out_of_the_way(pool, names) == 0
    assert count(pool, "get", "breaker") > 350
    assert pool.fault
    server.thaw()
    until(lambda: all(are_held(pool, names)))
    assert not pool.fault


def test_a_late_answer_answers_no_other_question(server: ValkeyServer, opened: Opening) -> None:
    """What a server that was frozen has to say about one window never reaches the lookup of the next."""
    pool = opened(server.url, readers=1, breakers=Never)
    first, second = fill(pool, 2)
    server.freeze()
    assert pool.get(first, DEADLINE) is None
    lookup = pool.begin(second, PATIENT)
    time.sleep(0.1)
    server.thaw()
    window = lookup.wait()
    assert window
    assert window.data == rows(second)
    assert count(pool, "get", "mismatch") == 0


@pytest.mark.nightly
def test_frozen_at_start(server: ValkeyServer, opened: Opening) -> None:
    server.freeze()
    begun = time.perf_counter()
    pool = opened(server.url)
    assert time.perf_counter() - begun < SLACK
    assert stays_out_of_the_way(pool, [key(0)]) == 0
    server.thaw()
    until(lambda: recovered(pool))


@pytest.mark.parametrize(
    ("rate", "piece"),
    [pytest.param(1e6, 1 << 14, id="narrow", marks=pytest.mark.nightly), pytest.param(200, 1, id="drop by drop")],
)
def test_slow(server: ValkeyServer, wire: Wire, opened: Opening, rate: float, piece: int) -> None:
    """Every piece in time and the whole far too late: what comes after the deadline counts for nothing."""
    direct = opened(server.url)
    names = fill(direct, 5)
    pool = opened(f"valkey://127.0.0.1:{wire.port}")
    assert all(are_held(pool, names))
    wire.rate, wire.piece = rate, piece
    assert stays_out_of_the_way(pool, names) == 0
    until(lambda: value(pool, "swapool_bounce_in_use") == 0, 0.5)
    wire.rate = None
    until(lambda: all(are_held(pool, names)))


def test_full(tmp_path: Path, opened: Opening) -> None:
    """The windows that would expire first make room; a server that may drop nothing refuses, and is no less well."""
    server = ValkeyServer(tmp_path / "small.log", memory="8mb")
    try:
        pool = opened(server.url)
        names = fill(pool, 60, ttl=1)[:0]
        for number in range(60):
            pool.put(key(number), rows(key(number)), 100 + number)
            pool.drain(PATIENT)
            names.append(key(number))
        kept = are_held(pool, names)
        assert kept[-10:] == [True] * 10
        assert not any(kept[:20])
        with server.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
        fill(pool, 60)
        assert count(pool, "put", "full") > 30
        assert not pool.fault
        assert are_held(pool, [names[-1]]) == [True]
    finally:
        server.kill()


def sealed(name: Key, age: float = 0.0) -> bytes:
    return seal(name, rows(name), ttl=300, created=time.time() - age, replayed=False) + rows(name)


NAME = key(1)
WHOLE = sealed(NAME)
WRONG = {
    "a bit of the rows": WHOLE[:5000] + bytes([WHOLE[5000] ^ 1]) + WHOLE[5001:],
    "a bit of the header": bytes([WHOLE[0] ^ 128]) + WHOLE[1:],
    "the last byte missing": WHOLE[:-1],
    "the header only": WHOLE[:SIZE],
    "half a header": WHOLE[: SIZE // 2],
    "nothing": b"",
    "too much": WHOLE + b"\0" * 100,
    "another position": sealed(key(1, position=2048)),
    "another conversation": sealed(key(2)),
    "another tenant": sealed(key(1, SPACE.salted("other"))),
    "another revision": sealed(key(1, replace(SPACE, checkpoint="5f1f"))),
    "another model": sealed(key(1, replace(SPACE, model="large"))),
    "another layout": sealed(key(1, replace(SPACE, layout="v4"))),
    "larger than any window": bytes(2 * len(WHOLE)),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_wrong_answers(server: ValkeyServer, opened: Opening, wrong: bytes) -> None:
    pool = opened(server.url)
    fill(pool, 1)
    with server.client() as client:
        client.set(NAME.text, wrong)
    assert pool.get(NAME, PATIENT) is None
    assert count(pool, "get", "mismatch") == 1
    assert pool.get(key(0), PATIENT) == rows(key(0)), "the connection goes on, or a new one takes over"
    assert not pool.fault


@pytest.mark.parametrize("age", [301, 1e7, -2, -1e7])
def test_too_old_and_from_the_future(server: ValkeyServer, opened: Opening, age: float) -> None:
    pool = opened(server.url)
    with server.client() as client:
        client.set(NAME.text, sealed(NAME, age))
    assert pool.get(NAME, PATIENT) is None
    assert count(pool, "get", "expired") == 1


def test_not_a_string(server: ValkeyServer, opened: Opening) -> None:
    pool = opened(server.url)
    with server.client() as client:
        client.lpush(NAME.text, "x")
    assert pool.get(NAME, PATIENT) is None
    assert "WRONGTYPE" in pool.fault


def test_not_a_valkey_server(opened: Opening) -> None:
    """Something else answers at that port, and says a lot."""
    with subprocess.Popen([sys.executable, "-c", TALKER], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout
            pool = opened(f"valkey://127.0.0.1:{int(other.stdout.readline())}")
            assert pool.get(NAME, PATIENT) is None
            assert pool.fault
        finally:
            other.kill()


def share_a_key(writers: list[Pool], reader: Pool) -> None:
    """Two prefills store the same conversation at the same time: a reader sees one of the two, whole."""
    name, other = key(1), rows(key(99))
    ended = threading.Event()

    def write(pool: Pool, data: bytes) -> None:
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
    assert not any("code" in pool.fault for pool in (reader, *writers)), "a race is no fault of the server"


def test_two_writers_of_one_key(server: ValkeyServer, opened: Opening) -> None:
    share_a_key([opened(server.url), opened(server.url)], opened(server.url))


def test_a_slow_start_is_a_start(server: ValkeyServer, wire: Wire, opened: Opening) -> None:
    """Signing in takes longer than any lookup may: the connection is kept for the next."""
    with server.client() as client:
        client.config_set("requirepass", "secret")
        client.auth("secret")
        pool = opened(f"valkey://:secret@127.0.0.1:{wire.port}", readers=1, writers=1, breakers=Never)
        (name,) = fill(pool, 1)
        assert are_held(pool, [name]) == [True]
        client.client_kill_filter(_type="normal")
        before = figures(client, "stats")["total_connections_received"]
        time.sleep(0.1)
        wire.rate = 50
        assert pool.get(name, DEADLINE) is None
        until(lambda: value(pool, "swapool_bounce_in_use") == 0)
        wire.rate = None
        assert pool.get(name, DEADLINE * 10) == rows(name)
        assert figures(client, "stats")["total_connections_received"] == before + 1


def test_two_deployments_on_one_server(server: ValkeyServer, opened: Opening) -> None:
    """D7, D14: neither another KV type nor another deployment's name leads to a shared entry."""
    pool = opened(server.url)
    spaces = [SPACE, replace(SPACE, row_format="bf16"), replace(SPACE, tenant="b/chat"), SPACE.salted("s")]
    for space in spaces:
        assert pool.get(key(1, space), PATIENT) is None
        pool.put(key(1, space), rows(key(1, space)), 300)
        pool.drain(PATIENT)
    assert all(are_held(pool, [key(1, space) for space in spaces]))


def use_at_once(pool: Pool, rounds: int = 60) -> None:
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


def test_many_at_once(server: ValkeyServer, opened: Opening) -> None:
    use_at_once(opened(server.url, depth=64))


@pytest.mark.nightly
def test_freezes_and_thaws_for_a_minute(server: ValkeyServer, opened: Opening) -> None:
    survives(server, opened(server.url))


def survives(server: Server, pool: Pool) -> None:
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
            # What was lost is stored again, as whoever replays does.
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


@pytest.mark.nightly
def test_a_storm_of_timeouts_leaves_nothing_behind(server: ValkeyServer) -> None:
    before, open_files = threads(), descriptors()
    pool = Pool(engine(server.url), SPACE.largest, breakers=Never)
    names = fill(pool, 8)
    assert all(are_held(pool, names))
    made, connected = threads(), descriptors()
    gc.collect()
    size = resident()
    server.freeze()
    for number in range(1000):
        assert pool.get(names[number % 8], 0.003) is None
    assert threads() == made
    assert descriptors() <= connected
    # Some find no free thread: the server takes no more than 511 connections while it does not look at them.
    assert count(pool, "get", "timeout") > 400
    assert resident() - size < 8 << 20
    server.thaw()
    assert pool.drain(PATIENT)
    assert value(pool, "swapool_bounce_in_use") == 0
    until(lambda: all(are_held(pool, names)))
    assert pool.close()
    assert threads() == before
    assert descriptors() == open_files


def test_nearly_as_fast_as_a_bare_client(server: ValkeyServer, opened: Opening) -> None:
    """A window of released size within 1.3 times what the library's own client takes, turn and turn about."""
    pool = opened(server.url, RELEASED)
    name = key(1, RELEASED)
    pool.put(name, rows(name), 300)
    assert pool.drain(PATIENT)
    expected = rows(name)

    def ratio() -> float:
        ours, bare = [], []
        with server.client() as client:
            for _ in range(60):
                begun = time.perf_counter()
                client.get(name.text)
                middle = time.perf_counter()
                data = pool.get(name, PATIENT)
                ours.append(time.perf_counter() - middle)
                bare.append(middle - begun)
                assert data == expected
        return median(ours) / median(bare)

    assert any(ratio() <= 1.3 for _ in range(5))

"""A Valkey that is unwell under traffic: every request is answered, rightly, and as soon as without a pool."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
from xxhash import xxh3_64

from tests.ports import free_port
from tests.swapool.servers import ValkeyServer, Wire
from tests.swapool.traffic.site import PATIENT, stays_out_of_the_way, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import valkey

    from tests.swapool.traffic.site import Traffic


@pytest.fixture
def wire(server: ValkeyServer) -> Iterator[Wire]:
    wire = Wire(server.port)
    yield wire
    wire.close()


async def comes_back(traffic: Traffic) -> None:
    """New windows are stored and found."""
    await traffic.hurry(PATIENT)

    async def hits() -> bool:
        exact, _ = await traffic.go_on(await traffic.open(windows=False), 2)
        return exact > 0

    await traffic.until(hits)


async def test_well(traffic: Traffic, server: ValkeyServer) -> None:
    """What the other tests miss when the pool is sick."""
    await traffic.say(server.url)
    exact, counts = await traffic.go_on(await traffic.open(), 30)
    assert exact == counts.got("hit") == 30
    assert counts.values["swapool_replay_tokens_total"] == 0
    assert counts.values["swapool_replay_avoided_tokens_total"] > 0


async def test_unreachable_since_before_the_servers_started(traffic: Traffic) -> None:
    await traffic.say(f"valkey://127.0.0.1:{free_port()}", deadline=0.02)
    salt = await traffic.open(windows=False)
    exact, counts, seconds = await timed(traffic.go_on(salt, 30))
    assert not exact
    stays_out_of_the_way(counts, 30, seconds)


@pytest.mark.parametrize(
    ("how", "requests"),
    [("killed", 40), ("frozen", 400), pytest.param("killed", 400, marks=pytest.mark.nightly)],
)
async def test_killed_or_frozen(traffic: Traffic, server: ValkeyServer, how: str, requests: int) -> None:
    await traffic.say(server.url)
    salt = await traffic.open()
    assert (await traffic.go_on(salt, 4))[0] == 4
    await traffic.hurry()
    server.kill() if how == "killed" else server.freeze()
    exact, counts, seconds = await timed(traffic.go_on(salt, requests))
    assert not exact
    stays_out_of_the_way(counts, requests, seconds)
    if how == "frozen":
        server.thaw()
        await comes_back(traffic)
        assert (await traffic.counts(traffic.site.prefills[1])).values["swapool_bounce_in_use"] == 0


async def test_slow(traffic: Traffic, server: ValkeyServer, wire: Wire) -> None:
    """A window takes seconds; no request does."""
    await traffic.say(f"valkey://127.0.0.1:{wire.port}")
    salt = await traffic.open()
    await traffic.hurry()
    wire.rate, wire.piece = 200, 1
    exact, counts, seconds = await timed(traffic.go_on(salt, 30))
    assert not exact
    stays_out_of_the_way(counts, 30, seconds)


async def test_full(traffic: Traffic, server: ValkeyServer) -> None:
    """It takes nothing more: what it has is found, the rest is replayed."""
    await traffic.say(server.url)
    salt = await traffic.open()
    with server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
    exact, counts = await traffic.go_on(await traffic.open(windows=False), 12)
    assert not exact
    assert counts.got("miss") == counts.lookups == 12
    exact, counts = await traffic.go_on(salt, 12)
    assert exact == counts.got("hit") == 12
    assert (await traffic.info(traffic.site.prefills[0]))["swa_pool"]["dropped"] > 0


def _sealed(value: bytes, at: int, layout: str, *new: object) -> bytes:
    """With other facts in its header, and a checksum that says that this is how it was written."""
    facts = bytearray(value[:56])
    struct.pack_into(layout, facts, at, *new)
    state = xxh3_64(bytes(facts))
    state.update(value[64:])
    return bytes(facts) + struct.pack("<Q", state.intdigest()) + value[64:]


def _created(seconds: float) -> Callable[[bytes, bytes], bytes]:
    return lambda value, _: _sealed(value, 40, "<Q", round(1000 * (time.time() + seconds)))


WRONG: dict[str, tuple[str, Callable[[bytes, bytes], bytes]]] = {
    "a flipped bit": ("mismatch", lambda value, _: value[:-9] + bytes([value[-9] ^ 2]) + value[-8:]),
    "truncated": ("mismatch", lambda value, _: value[:-1]),
    "empty": ("mismatch", lambda *_: b""),
    "too long": ("mismatch", lambda value, other: value + other),
    "another talk": ("mismatch", lambda _, other: other),
    "another deployment": ("mismatch", lambda value, _: _sealed(value, 16, "<16s", b"another one's")),
    "another position": ("mismatch", lambda value, _: _sealed(value, 12, "<I", 56)),
    "expired": ("expired", _created(-301)),
    "from the future": ("expired", _created(60)),
}


def contents(client: valkey.Valkey) -> dict[str, bytes]:
    """All windows; the client's own annotations leave open whether it is asynchronous."""
    names: Any = client.keys()
    values: Any = client.mget(names)
    return dict(zip(names, values, strict=True))


async def test_wrong_answers(traffic: Traffic, server: ValkeyServer) -> None:
    """Whatever somebody has written under the windows' names: it is replayed, and the right windows are found again."""
    await traffic.say(server.url)
    salt = await traffic.open()
    with server.client() as client:
        right = contents(client)
        others = dict(zip(right, [*list(right.values())[1:], *list(right.values())[:1]], strict=True))
        assert len(right) == 2 * len(traffic.site.talks)
        for wrong, (result, how) in WRONG.items():
            client.mset({name: how(value, others[name]) for name, value in right.items()})
            exact, counts = await traffic.go_on(salt, 4)
            assert (exact, counts.got(result)) == (0, 4), wrong
            client.mset(right)
    exact, _ = await traffic.go_on(salt, 4)
    assert exact == 4
    assert (await traffic.info(traffic.site.prefills[1]))["swa_pool"]["fault"] == ""


async def test_two_prefills_write_one_key(traffic: Traffic, server: ValkeyServer) -> None:
    await traffic.say(server.url)
    salt, talks = traffic.salt(), traffic.site.talks
    for talk in talks:
        answers = await asyncio.gather(*(traffic.ask(talk.prompt, salt, 10, each) for each in traffic.site.prefills))
        assert answers == [talk.answer] * 2

    async def stored() -> bool:
        with server.client() as client:
            return client.dbsize() == 2 * len(talks)

    await traffic.until(stored)
    for prefill in (0, 1):
        exact, _ = await traffic.go_on(salt, 12, prefill=prefill)
        assert exact == 12


async def test_rolled_during_traffic(traffic: Traffic, server: ValkeyServer, tmp_path: Path) -> None:
    await traffic.say(server.url)
    salt, new = await traffic.open(), server
    ended = asyncio.Event()

    async def talk() -> tuple[int, int]:
        exact = lookups = 0
        while not ended.is_set():
            actual, counts = await traffic.go_on(salt, 10, start=lookups)
            exact, lookups = exact + actual, lookups + counts.lookups
        return exact, lookups

    talking = asyncio.create_task(talk())
    try:
        for number in range(3):
            await asyncio.sleep(0.6)
            new.kill()
            await asyncio.sleep(0.6)
            new = ValkeyServer(tmp_path / f"{number}.log", port=server.port)
        ended.set()
        exact, lookups = await talking
        assert 0 < exact < lookups
        await comes_back(traffic)
    finally:
        new.kill()

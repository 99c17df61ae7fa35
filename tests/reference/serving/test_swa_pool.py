"""Returning conversations on real servers, with a real pool and a folder of pages between them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from epd_workers.registrar.server_info import parse
from tests.support.polling import eventually
from tests.support.ports import HOST, free_port
from tests.support.reference.serving import AT_ONCE_SECONDS, CHAT, DEFAULTS, EXACT, chat
from tests.support.swapool.servers import MooncakeMaster, MooncakeStore, ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.reference.serving import Fleet, Program, Reply, Running, Starting

# Long enough for a machine that does five things at once: what is tested here is not how fast a pool is.
DEADLINE = 5.0
# A server ends with its requests: what is left of the pool and the folder may take this much longer, and no more.
EXIT_SECONDS = 6.0
PROMPT = [17, 3, 101, 44, 9, 60, 71, 5] * 5
ANSWERED = 10
QUESTION = [23, 8, 15, 42]
# No page is as short as the question that a server proves itself with: what it leaves behind would be counted here.
PAGE = 8
SIZES = (*DEFAULTS, "--page-size", str(PAGE))


class Configuration:
    """The file that a deployment's pool settings are mounted as."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def say(self, address: str, **more: float) -> None:
        self.write(json.dumps({"address": address, "deadline": DEADLINE, **more}))

    def write(self, text: str) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(text)
        part.replace(self.path)


@dataclass
class Site:
    """What the servers of a test share."""

    fleet: Fleet
    configuration: Configuration
    folder: Path

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--swa-pool-config", str(self.configuration.path), "--kv-disk-path", str(self.folder))

    async def start(self, role: str, *flags: str) -> Running:
        replay = () if role == "decode" else ("--encoder-replay", "on")
        return await self.fleet.start(role, *SIZES, *replay, *self.flags, *flags)

    def left(self, valkey: ValkeyServer) -> tuple[int, int]:
        """Windows in the pool and pages on disk that do not only approximate, once the servers have left."""
        with valkey.client() as client:
            windows = len(list(client.scan_iter()))
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return windows, sum(path.suffix != ".replayed" for path in files)


@pytest.fixture
def site(fleet: Fleet, tmp_path: Path) -> Site:
    return Site(fleet, Configuration(tmp_path / "pool.json"), tmp_path / "pages")


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path / "valkey.log")
    yield server
    server.kill()


def turn(ids: list[int], **fields: Any) -> dict[str, Any]:
    return {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": ANSWERED, "temperature": 0, "ignore_eos": True},
        **fields,
    }


def next_turn(ids: list[int], answer: Reply) -> list[int]:
    assert answer.status == 200, answer.body
    return [*ids, *answer.body["output_ids"], *QUESTION]


async def ask(server: Running, ids: list[int], **fields: Any) -> Reply:
    answer = await server.post("/generate", turn(ids, **fields))
    assert answer.status == 200, answer.body
    return answer


def after(ids: list[int]) -> int:
    """Tokens whose pages a conversation finds that goes on after this prompt and its answer."""
    return (len(ids) + ANSWERED - 1) // PAGE * PAGE


def cached(answer: Reply) -> int:
    tokens: int = answer.body["meta_info"]["cached_tokens"]
    return tokens


async def server_info(server: Running) -> dict[str, Any]:
    info: dict[str, Any] = (await server.get("/server_info")).body
    return info


async def adopted(server: Running) -> int:
    count: int = (await server_info(server))["replay"]["encoder"]["windows_adopted"]
    return count


async def reports(server: Running, name: str, check: Callable[[Any], bool]) -> None:
    """Wait until a part of what a server tells of itself is as it should be."""

    async def reached() -> bool:
        return check((await server_info(server))[name])

    await eventually(reached, AT_ONCE_SECONDS, every=0.1)


async def kept(server: Running, windows: int, pages: int, *others: Running) -> None:
    """Wait until a server has stored that many windows, and it and others together that many pages."""
    await reports(server, "swa_pool", lambda pool: pool is not None and pool["stored"] >= windows)

    async def reached() -> bool:
        stored: list[int] = [(await server_info(one))["kv_disk"]["stored"] for one in (server, *others)]
        return sum(stored) >= pages

    await eventually(reached, AT_ONCE_SECONDS, every=0.1)


async def counted(server: Running) -> dict[str, float]:
    families = text_string_to_metric_families((await server.get("/metrics")).body)
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
        if "le" not in sample.labels
    }


async def test_a_conversation_that_returns_to_another_server(site: Site, valkey: ValkeyServer) -> None:
    site.configuration.say(valkey.url)
    alone = await site.fleet.start("aggregated")
    first, second = await site.start("aggregated"), await site.start("aggregated")
    ids = next_turn(PROMPT, opening := await ask(first, PROMPT))
    assert opening.body["output_ids"] == (await ask(alone, PROMPT)).body["output_ids"]
    await kept(first, 2, 6)
    answer = await ask(second, ids)
    assert answer.body["output_ids"] == (await ask(alone, ids)).body["output_ids"]
    assert cached(answer) == after(PROMPT) == 48
    info = await server_info(second)
    assert info["swa_pool"].items() >= {"engine": "valkey", "fault": "", "hits": 1, "misses": 0}.items()
    assert info["replay"]["encoder"].items() >= {"active": True, "rows_replayed": 0, "windows_adopted": 1}.items()
    assert info["replay"]["encoder"]["rows_avoided"] > 0
    # The registrar understands every word of it.
    report = parse(info)
    assert report.faults == ()
    assert report.swa_pool is not None
    assert report.swa_pool.document() == info["swa_pool"]
    assert info["kv_disk"].items() >= {"read": 6, "dropped": 0, "evicted": 0, "fault": ""}.items()
    assert info["kv_disk"]["bytes"] > 0
    values = await counted(second)
    assert values["swapool_get_total hit"] == 1
    assert values["swapool_replay_avoided_tokens_total"] == info["replay"]["encoder"]["rows_avoided"]
    assert values["swapool_replay_tokens_total"] == 0
    assert values["kv_disk_get_total hit"] == 6
    assert values["sglang:num_requests_total reference"] == 1
    assert values["sglang:cached_tokens_total device reference"] == 48


@pytest.mark.parametrize(("publish", "hits"), [("exact", 0), ("all", 1)])
async def test_what_a_replayed_conversation_leaves(site: Site, valkey: ValkeyServer, publish: str, hits: int) -> None:
    site.configuration.say(valkey.url)
    server = await site.start("aggregated", "--swa-pool-publish", publish)
    ids = next_turn(PROMPT, await ask(server, PROMPT))
    await kept(server, 2, 6)
    with valkey.client() as client:
        client.flushall()
    ids = next_turn(ids, await ask(server, ids))
    await kept(server, 2 + hits, 7)
    await ask(server, ids)
    info = await server_info(server)
    assert (info["swa_pool"]["hits"], info["swa_pool"]["misses"]) == (hits, 2 - hits)
    assert info["replay"]["encoder"]["windows_adopted"] == hits


async def test_a_conversation_that_returns_to_another_prefill(site: Site, valkey: ValkeyServer) -> None:
    site.configuration.say(valkey.url)
    fleet, alone = site.fleet, await site.fleet.start("aggregated")
    prefills, decode = [await site.start("prefill") for _ in range(2)], await site.start("decode")
    ids, known = PROMPT, 0
    for number in range(4):
        _, answer = await fleet.pair(prefills[number % 2], decode, turn(ids, cache_salt="ours"), "/generate")
        assert answer.body["output_ids"] == (await ask(alone, ids)).body["output_ids"]
        assert cached(answer) == known
        # What prefill made of the prompt and decode of the answer is there for the next server that is asked.
        await kept(decode, number + 1, after(ids) // PAGE, *prefills)
        ids, known = next_turn(ids, answer), after(ids)
    assert [await adopted(prefill) for prefill in prefills] == [1, 2]
    assert [(await server_info(prefill))["replay"]["encoder"]["rows_replayed"] for prefill in prefills] == [0, 0]
    assert (await server_info(decode))["swa_pool"]["misses"] == 0
    _, answer = await fleet.pair(prefills[0], decode, turn(ids, cache_salt="theirs"), "/generate")
    assert cached(answer) == 0


async def test_what_a_replay_began_is_not_left_to_others(site: Site, valkey: ValkeyServer) -> None:
    """The mark travels with the handover: decode leaves nothing where prefill only approximated."""
    prefill, decode = await site.start("prefill"), await site.start("decode")
    _, answer = await site.fleet.pair(prefill, decode, turn(PROMPT), "/generate")
    site.configuration.say(valkey.url)
    for server in (prefill, decode):
        await reports(server, "swa_pool", lambda pool: pool is not None)
    _, answer = await site.fleet.pair(prefill, decode, turn(next_turn(PROMPT, answer)), "/generate")
    assert cached(answer) > 0
    assert (await server_info(prefill))["replay"]["encoder"]["rows_replayed"] > 0
    for server in (prefill, decode):
        await server.server.stop(AT_ONCE_SECONDS)
    assert site.left(valkey) == (0, len(PROMPT) // PAGE)


async def test_the_configuration_is_followed_while_the_server_runs(site: Site, valkey: ValkeyServer) -> None:
    server = await site.start("aggregated")
    assert (await server_info(server))["swa_pool"] is None
    site.configuration.say("memory:?bytes=1000000")
    await reports(server, "swa_pool", lambda pool: pool is not None and pool["engine"] == "memory")
    ids = next_turn(PROMPT, await ask(server, PROMPT))
    await ask(server, ids)
    assert await adopted(server) == 1
    site.configuration.say(valkey.url)
    await reports(server, "swa_pool", lambda pool: pool["engine"] == "valkey" and pool["hits"] == 0)
    site.configuration.write('{"address": 7}')
    await reports(server, "swa_pool", lambda pool: pool["fault"] == "Misconfigured")
    other = list(reversed(PROMPT))
    ids = next_turn(other, await ask(server, other))
    await kept(server, 2, 13)
    await ask(server, ids)
    assert await adopted(server) == 2
    site.configuration.path.unlink()
    await reports(server, "swa_pool", lambda pool: pool is None)
    last = next_turn(ids, await ask(server, ids))
    await ask(server, last)
    assert await adopted(server) == 2
    assert (await server_info(server))["replay"]["encoder"]["rows_replayed"] > 0


async def test_a_decode_server_takes_no_pool_in_its_own_memory(site: Site) -> None:
    site.configuration.say("memory:?bytes=1000000")
    decode, prefill = await site.start("decode"), await site.start("prefill")
    assert (await server_info(decode))["swa_pool"] is None
    assert (await server_info(prefill))["swa_pool"]["engine"] == "memory"


async def test_a_pool_that_is_down_costs_the_replay_and_nothing_else(site: Site) -> None:
    site.configuration.say(f"valkey://{HOST}:{free_port()}")
    alone, server = await site.fleet.start("aggregated", "--encoder-replay", "on"), await site.start("aggregated")
    assert (await server.get("/ready")).status == 200
    ids = PROMPT
    for _ in range(3):
        answer = await ask(server, ids)
        assert answer.body["output_ids"] == (await ask(alone, ids)).body["output_ids"]
        ids = next_turn(ids, answer)
    info = await server_info(server)
    assert info["swa_pool"].items() >= {"engine": "valkey", "hits": 0, "stored": 0}.items()
    assert info["swa_pool"]["misses"] == 2
    assert info["replay"]["encoder"]["rows_replayed"] > 0
    assert (await counted(server))["swapool_breaker_open get"] == 1


async def test_a_request_without_a_peer_leaves_nothing(site: Site, valkey: ValkeyServer) -> None:
    site.configuration.say(valkey.url)
    decode = await site.start("decode")
    lone = {"bootstrap_host": "2.2.2.2", "bootstrap_room": 0}
    assert len((await ask(decode, PROMPT, **lone)).body["output_ids"]) == ANSWERED
    await decode.server.stop(AT_ONCE_SECONDS)
    assert site.left(valkey) == (0, 0)


async def test_what_is_on_its_way_when_a_server_leaves_arrives(site: Site, valkey: ValkeyServer) -> None:
    site.configuration.say(valkey.url)
    server = await site.start("aggregated")
    await ask(server, PROMPT)
    await server.server.stop(AT_ONCE_SECONDS)
    assert site.left(valkey) == (2, after(PROMPT) // PAGE)


async def test_salts_share_nothing(site: Site, valkey: ValkeyServer) -> None:
    site.configuration.say(valkey.url)
    first, second = await site.start("aggregated"), await site.start("aggregated")
    salts: list[dict[str, str]] = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"extra_key": "a"}]
    salts += [{"cache_salt": "a", "extra_key": "b"}, {"cache_salt": "ab"}]
    again = (len(PROMPT) - 1) // PAGE * PAGE
    for number, salt in enumerate(salts, start=1):
        assert cached(await ask(first, PROMPT, **salt)) == 0
        assert cached(await ask(first, PROMPT, **salt)) == again
        await kept(first, 2 * number, 6 * number)
        assert cached(await ask(second, PROMPT, **salt)) == again
    assert cached(await ask(second, PROMPT, cache_salt="", extra_key=None)) == again


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat("x")), ("/v1/completions", {"prompt": "x"}), ("/generate", {"text": "x"})]
)
async def test_salts_are_short_texts(site: Site, path: str, body: dict[str, Any]) -> None:
    server = await site.fleet.start("aggregated")
    for name in ("cache_salt", "extra_key"):
        for wrong in (7, ["a"], "x" * 257):
            answer = await server.post(path, body | {name: wrong})
            assert (answer.status, answer.code) == (400, "invalid_value")
            assert name in answer.message
        assert (await server.post(path, body | {name: "x" * 256})).status == 200


def children(process: int) -> set[int]:
    """Process ids of the children of all its threads."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return {int(number) for task in tasks for number in (task / "children").read_text().split()}


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


async def leave(server: Program) -> float:
    """Tell it to end while it answers; return the seconds that took."""
    body = turn(PROMPT)
    async with server.session.post(server.url + "/generate", json=body) as answer:
        assert answer.status == 200
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(server.process.wait(), 60) == 0
    return time.monotonic() - began


async def test_a_frozen_pool_keeps_nobody_from_leaving(program: Starting, site: Site, valkey: ValkeyServer) -> None:
    site.configuration.say(valkey.url)
    server = await program("aggregated", "--encoder-replay", "on", *SIZES, *EXACT, *site.flags)
    valkey.freeze()
    assert await leave(server) < EXIT_SECONDS


async def test_no_process_of_a_pool_stays_behind(program: Starting, site: Site, tmp_path: Path) -> None:
    master = MooncakeMaster(tmp_path / "master.log")
    store = MooncakeStore(tmp_path / "store.log", master.address)
    try:
        site.configuration.say(f"mooncake://{master.address}")
        flags = ("--encoder-replay", "on", *SIZES, *EXACT, *site.flags)
        server = await program("aggregated", *flags)
        agents: set[int] = set()

        async def started() -> bool:
            agents.update(children(server.process.pid))
            return bool(agents)

        await eventually(started, AT_ONCE_SECONDS, every=0.1)
        master.freeze()
        assert await leave(server) < EXIT_SECONDS
        assert not [agent for agent in agents if alive(agent)]
    finally:
        store.kill()
        master.kill()

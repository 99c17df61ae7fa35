"""Two prefill servers and a decode server that share a pool and a folder, one server that has neither, and talks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.support.ports import free_ports
from tests.support.swapool.windows import SLACK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

HOST = "127.0.0.1"
PAGE = 8
SIZES = ("--page-size", str(PAGE), "--context-length", "192", "--max-total-tokens", "4096")
# Exact but for what a replay brings back, so that every answer is one of two that are known beforehand.
SHAPE = (*SIZES, "--chunked-prefill-size", "16", "--decoder-replay", "off")
PROMPT, ANSWER, QUESTION, AGAIN = 40, 10, 4, 2
# Full pages of a talk's first turn: of its prompt, and of the answer that was run.
PROMPT_PAGES, ANSWER_PAGES = PROMPT // PAGE, (PROMPT + ANSWER - 1) // PAGE - PROMPT // PAGE
DEADLINE = 0.02
# For what must come back: the machine may be busy, and speed is not what is tested then.
PATIENT = 5.0


class Server:
    """One process of ``epd-reference``."""

    def __init__(self, role: str, checkpoint: Path, folder: Path, *flags: str) -> None:
        self.port, self.bootstrap, encoders = free_ports(3)
        ports = ("--port", self.port, "--bootstrap-port", self.bootstrap, "--encoder-bootstrap-port", encoders)
        command = ["--role", role, "--host", HOST, "--model-path", checkpoint, *ports, *SHAPE, *flags]
        self.log = folder / f"{role}-{self.port}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "epd_workers.reference.main", *map(str, command)],
                stdout=out,
                stderr=out,
                env=os.environ | {"OMP_NUM_THREADS": "1", "POD_NAME": role},
            )

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Turn:
    """The second turn of a talk.

    Attributes:
        ids: Prompt: the first turn's, its answer and a question.
        exact: What an uninterrupted run says.
        replayed: What is said if the window before the question has to be computed again, roughly.
    """

    ids: list[int]
    exact: list[int]
    replayed: list[int]


@dataclass(frozen=True)
class Talk:
    """A conversation of two turns, the second of which is known in several versions."""

    prompt: list[int]
    answer: list[int]
    turns: list[Turn]


@dataclass
class Site:
    """The processes of all tests, and what is known about their model."""

    prefills: tuple[Server, Server]
    decode: Server
    alone: Server
    configuration: Path
    pages: Path
    talks: list[Talk] = field(default_factory=list)
    salts: itertools.count[int] = field(default_factory=itertools.count)


@dataclass(frozen=True)
class Counts:
    """What a server has counted, or what it has counted since."""

    values: dict[str, float]

    def __sub__(self, other: Self) -> Counts:
        return Counts({name: value - other.values.get(name, 0) for name, value in self.values.items()})

    def got(self, *results: str) -> int:
        """Lookups that ended so."""
        return int(sum(self.values[f"swapool_get_total {result}"] for result in results))

    @property
    def lookups(self) -> int:
        return int(self.values["swapool_get_seconds_count"])

    def within(self, seconds: float) -> int:
        """Lookups that took no longer; `seconds` is a bound of the histogram."""
        return int(self.values[f"swapool_get_seconds_bucket {seconds}"])


class Traffic:
    """Requests to the site, as the router sends them."""

    def __init__(self, site: Site, session: aiohttp.ClientSession) -> None:
        self.site = site
        self.failed: list[Any] = []
        self._session = session
        self._random = random.Random()

    async def get(self, server: Server, path: str) -> tuple[int, Any]:
        async with self._session.get(f"http://{HOST}:{server.port}{path}") as answer:
            return answer.status, await (answer.json() if "json" in answer.content_type else answer.text())

    async def ready(self, server: Server) -> bool:
        assert server.process.poll() is None, server.log.read_text()
        with contextlib.suppress(aiohttp.ClientError):
            return (await self.get(server, "/ready"))[0] == 200
        return False

    async def info(self, server: Server) -> dict[str, Any]:
        info: dict[str, Any] = (await self.get(server, "/server_info"))[1]
        return info

    async def counts(self, server: Server) -> Counts:
        families = text_string_to_metric_families((await self.get(server, "/metrics"))[1])
        samples = [sample for family in families for sample in family.samples]
        return Counts({" ".join([each.name, *each.labels.values()]): each.value for each in samples})

    async def until(self, what: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            while not await what():  # noqa: ASYNC110 - other processes set no events
                await asyncio.sleep(0.05)

    async def say(self, address: str, *, deadline: float = PATIENT, ttl: float = 300) -> None:
        """Give the servers a pool of which they know nothing yet."""
        self.write("{}")
        await self.until(lambda: self._pools(there=False))
        self.write(json.dumps({"address": address, "deadline": deadline, "ttl": ttl}))
        await self.until(lambda: self._pools(there=True))

    async def hurry(self, deadline: float = DEADLINE) -> None:
        """Let lookups end sooner, of the same pool."""
        self.write(json.dumps(json.loads(self.site.configuration.read_text()) | {"deadline": deadline}))
        # Nothing tells that a server has read it: it looks once a second.
        await asyncio.sleep(1.5)

    def write(self, text: str) -> None:
        part = self.site.configuration.with_suffix(".part")
        part.write_text(text)
        part.replace(self.site.configuration)

    async def _pools(self, *, there: bool) -> bool:
        servers = (*self.site.prefills, self.site.decode)
        return all([((await self.info(server))["swa_pool"] is not None) == there for server in servers])

    async def ask(self, ids: list[int], salt: str, tokens: int, prefill: Server | None = None) -> list[int]:
        """The answer's tokens: of the server that stands alone, or of a prefill server and the decode server."""
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body: dict[str, Any] = {"input_ids": ids, "cache_salt": salt, "sampling_params": sampling}
        if prefill is None:
            return await self._post(self.site.alone, body)
        room = self._random.getrandbits(62)
        body |= {"bootstrap_host": HOST, "bootstrap_port": prefill.bootstrap, "bootstrap_room": room}
        _, answer = await asyncio.gather(self._post(prefill, body), self._post(self.site.decode, body))
        return answer

    async def _post(self, server: Server, body: dict[str, Any]) -> list[int]:
        async with self._session.post(f"http://{HOST}:{server.port}/generate", json=body) as answer:
            reported = await answer.json()
            if answer.status != 200:
                self.failed.append(reported)
            ids: list[int] = reported.get("output_ids", [])
            return ids

    def salt(self) -> str:
        """Talks under a salt of their own are new to all servers."""
        return f"salt {next(self.site.salts)}"

    async def open(self, *, windows: bool = True, prefill: int = 0, salt: str = "") -> str:
        """Let every talk's first turn run on a prefill server, and its pages and windows arrive; return their salt."""
        salt, first, decode = salt or self.salt(), self.site.prefills[prefill], self.site.decode
        before = [await self._kept(server) for server in (first, decode)]
        for talk in self.site.talks:
            assert await self.ask(talk.prompt, salt, ANSWER, first) == talk.answer
        count = len(self.site.talks)
        wanted = [(PROMPT_PAGES * count, count * windows), (ANSWER_PAGES * count, count * windows)]

        async def arrived() -> bool:
            now = [await self._kept(server) for server in (first, decode)]
            return all(
                pages - earlier[0] >= want[0] and kept - earlier[1] >= want[1]
                for (pages, kept), earlier, want in zip(now, before, wanted, strict=True)
            )

        await self.until(arrived)
        return salt

    async def _kept(self, server: Server) -> tuple[int, int]:
        info = await self.info(server)
        return info["kv_disk"]["stored"], info["swa_pool"]["stored"]

    async def go_on(self, salt: str, count: int, *, prefill: int = 1, start: int = 0) -> tuple[int, Counts]:
        """Let `count` second turns run on the other prefill server.

        Returns:
            How many were answered as by an uninterrupted run; the others were as after a replay, and the server says
            the same of each. And what the server counted meanwhile.
        """
        server = self.site.prefills[prefill]
        before, adopted = await self.counts(server), await self._adopted(server)
        turns = [turn for talk in self.site.talks for turn in talk.turns]
        exact = 0
        for number in range(start, start + count):
            turn = turns[number % len(turns)]
            answer = await self.ask(turn.ids, salt, AGAIN, server)
            assert answer in (turn.exact, turn.replayed), (answer, turn, self.failed)
            exact += answer == turn.exact
        assert not self.failed
        assert await self._adopted(server) - adopted == exact
        return exact, await self.counts(server) - before

    async def _adopted(self, server: Server) -> int:
        adopted: int = (await self.info(server))["replay"]["encoder"]["windows_adopted"]
        return adopted

    async def learn(self, count: int, versions: int) -> None:
        """Find talks in which it shows whether a window was adopted, and what is said in them."""
        chance, salt = random.Random(1), self.salt()
        while len(self.site.talks) < count:
            prompt = _ids(chance, PROMPT)
            answer = await self.ask(prompt, salt, ANSWER)
            turns = []
            for _ in range(versions):
                ids = [*prompt, *answer, *_ids(chance, QUESTION)]
                exact, replayed = await self.ask(ids, self.salt(), AGAIN), await self.ask(ids, salt, AGAIN)
                if exact != replayed:
                    turns.append(Turn(ids, exact, replayed))
            if turns:
                self.site.talks.append(Talk(prompt, answer, turns))


def _ids(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(3, 120) for _ in range(count)]


def stays_out_of_the_way(counts: Counts, count: int, seconds: float) -> None:
    """What the pool added to `count` requests that came within `seconds`: one lookup each, few that waited.

    Args:
        counts: What the server counted meanwhile.
        count: Requests.
        seconds: From the first to the last.
    """
    assert counts.lookups == count
    # At the first failure, then once per period, which doubles from half a second to four.
    periods = itertools.takewhile(lambda moment: moment < seconds, itertools.accumulate((0.5, 1, 2, *[4] * 1000)))
    waits = 1 + len(list(periods))
    # What is left of a pool may well say at once that it has none of the windows.
    assert count - counts.got("breaker", "miss") <= waits
    assert count - counts.within(DEADLINE) <= waits
    assert counts.within(0.5) == count, f"none longer than {DEADLINE} s, on a busy machine {SLACK} s more"
    if count >= 400:
        assert count - counts.within(DEADLINE) <= count // 100


async def timed(what: Awaitable[tuple[int, Counts]]) -> tuple[int, Counts, float]:
    begun = time.monotonic()
    exact, counts = await what
    return exact, counts, time.monotonic() - begun


def ends(servers: Sequence[Server]) -> None:
    for server in servers:
        server.end()

"""Returning turns in the whole real engine, with a real Valkey behind it: what does not run again is exact."""

from __future__ import annotations

import json
import random
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

import epd_sglang
from tests.support import sglang
from tests.support.polling import until
from tests.support.swapool.servers import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)

# Prompts of a first turn fill such chunks, so that an uninterrupted run has the same ones: the result of a matrix
# product depends on how many rows it has.
CHUNK = 768
DEADLINE = 0.02
MORE = ((768, 128), (768, 129), (768, 300), (1536, 128), (1536, 300))
# The loop in front of a request's turn runs on a core that others share.
NOISE = 0.5


@dataclass(frozen=True)
class Engine:
    """A server, and the settings of its pool.

    Attributes:
        server: It.
        settings: The file.
    """

    server: sglang.Server
    settings: Path

    def use(self, url: str | None, deadline: float = 1.0) -> None:
        """Let it use a pool, or none, and wait until it does. Without a hurry the deadline is no reason for a miss."""
        before = self.server.log.read_text().count("window pool:")
        wanted = {} if url is None else {"address": url, "ttl": 300.0, "deadline": deadline}
        if self.settings.read_text() == json.dumps(wanted):
            return
        self.settings.write_text(json.dumps(wanted))
        # The file is read every second; a change of the address shows in the log.
        until(lambda: self.server.log.read_text().count("window pool:") > before, 10)

    def count(self, name: str, **labels: str) -> float:
        """A counter."""
        wanted = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        name = f"{name}{{{wanted}}}" if wanted else name
        lines = [line for line in self.server.get("/metrics").splitlines() if line.startswith(f"{name} ")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def publish(self, ids: list[int], tokens: int = 1) -> sglang.Generated:
        """Answer a turn, and wait until its window is stored, so that the next one finds it."""
        before = self.count("swapool_put_total", result="stored")
        answer = self.server.generate(ids, tokens)
        until(lambda: self.count("swapool_put_total", result="stored") > before, 10)
        return answer


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path_factory.mktemp("valkey") / "log")
    yield server
    server.kill()


@pytest.fixture(scope="module")
def start(
    engine_python: Path, plugin_path: Path, random_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Engine]]:
    """Starts an engine whose pool follows a file that says at first that there is none."""
    folder, servers = tmp_path_factory.mktemp("engines"), []

    def make(name: str) -> Engine:
        settings, python = folder / f"{name}.json", folder / f"{name}-python"
        settings.write_text("{}")
        # The engine's processes take nothing from this one's environment.
        python.write_text(f'#!/bin/sh\nEPD_SWA_POOL={settings} exec {shlex.quote(str(engine_python))} "$@"\n')
        python.chmod(0o755)
        flags = (
            "--enable-metrics", "--enable-encoder-swa-bounded-replay", "--chunked-prefill-size", str(CHUNK),
            "--max-total-tokens", "16384",
        )  # fmt: skip
        server = sglang.Server.start(python, plugin_path, random_model, folder / f"{name}.log", *flags)
        servers.append(server)
        return Engine(server, settings)

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def engine(start: Callable[[str], Engine]) -> Engine:
    return start("first")


def words(length: int, seed: int) -> list[int]:
    """Token ids that no marker is among."""
    rng = random.Random(seed)
    return [rng.randrange(270, 500) for _ in range(length)]


def uninterrupted(engine: Engine, ids: list[int]) -> sglang.Generated:
    """The answer of an engine that has seen nothing of a prompt."""
    engine.use(None)
    engine.server.flush()
    return engine.server.generate(ids)


def same(one: sglang.Generated, other: sglang.Generated) -> bool:
    """Whether all tokens and all their log-probabilities are equal, bit for bit."""
    return (one.ids, one.logprobs) == (other.ids, other.logprobs)


@pytest.mark.parametrize(
    ("prefix", "new"), [(768, 200), (768, 700), *(pytest.param(*each, marks=pytest.mark.nightly) for each in MORE)]
)
def test_a_returning_turn_with_its_window_is_an_uninterrupted_run(
    engine: Engine, valkey: ValkeyServer, prefix: int, new: int
) -> None:
    """And without the window it is not, or this would say nothing. 700 rows fit the chunk: nothing is replayed."""
    ids = words(prefix + new, prefix + new)
    exact = uninterrupted(engine, ids)
    engine.server.flush()
    engine.server.generate(ids[:prefix], 1)
    replayed = engine.server.generate(ids)
    engine.use(valkey.url)
    engine.server.flush()
    avoided = engine.count("swapool_replay_avoided_tokens_total")
    engine.publish(ids[:prefix])
    adopted = engine.server.generate(ids)
    assert replayed.cached == adopted.cached == prefix
    assert engine.count("swapool_replay_avoided_tokens_total") == avoided + 128
    assert not same(replayed, exact)
    assert same(adopted, exact)


@pytest.mark.parametrize("new", [60, 127])
def test_a_short_turn_is_replayed_as_without_a_pool(engine: Engine, valkey: ValkeyServer, new: int) -> None:
    """The late layers look back on rows in front of the hit, which no pool has."""
    ids = words(768 + new, new)
    engine.use(None)
    engine.server.flush()
    engine.server.generate(ids[:768], 1)
    replayed = engine.server.generate(ids)
    engine.use(valkey.url)
    engine.server.flush()
    avoided = engine.count("swapool_replay_avoided_tokens_total")
    engine.publish(ids[:768])
    assert same(engine.server.generate(ids), replayed)
    assert engine.count("swapool_replay_avoided_tokens_total") == avoided


@pytest.mark.nightly
def test_salts_keep_windows_apart(engine: Engine, valkey: ValkeyServer) -> None:
    engine.use(valkey.url)
    engine.server.flush()
    ids = words(1000, 5)
    engine.publish(ids[:768])
    hits = engine.count("swapool_get_total", result="hit")
    engine.server.post("/generate", {**sglang.question(ids[:768], 1), "cache_salt": "other"})
    answer = sglang.Generated.of(engine.server.post("/generate", {**sglang.question(ids, 2), "cache_salt": "other"}))
    assert answer.cached == 768
    assert engine.count("swapool_get_total", result="hit") == hits + 1  # the one that this salt left itself


def test_what_replay_spares_is_counted(engine: Engine) -> None:
    def rows(half: str, state: str) -> float:
        return engine.count("epd_replay_layer_rows_total", half=half, state=state)

    halves = [(half, state) for half in ("encoder", "decoder") for state in ("run", "skipped")]
    engine.use(None)
    engine.server.flush()
    ids = words(1000, 6)
    before = {each: rows(*each) for each in halves}
    engine.server.generate(ids[:768], 1)
    engine.server.generate(ids, 1)
    run, spared, late, skipped = (rows(*each) - before[each] for each in halves)
    # The model has 8 layers, the last 4 of them late.
    assert (run, spared) == (4 * (768 + 128 + 232), 4 * (768 - 128))
    assert (late, skipped) == (4 * (128 + 128), 4 * (640 + 104))
    assert engine.count("epd_replay_active", half="encoder", reason="") == 1
    assert engine.count("epd_replay_active", half="decoder", reason="") == 1


def test_the_plugin_says_that_it_is_there(engine: Engine) -> None:
    assert engine.count("epd_plugin_info", role="aggregated", version=epd_sglang.__version__) == 1


@dataclass(frozen=True)
class Turn:
    """A turn that returns while something is wrong with the pool.

    Attributes:
        replayed: Its answer without a pool.
        answer: With it.
        seconds: How long that took.
        patience: How long it took without a pool, and the pool's deadline.
    """

    replayed: sglang.Generated
    answer: sglang.Generated
    seconds: float
    patience: float


def returning(engine: Engine, valkey: ValkeyServer, seed: int, harm: Callable[[list[int]], None]) -> Turn:
    """Publish a first turn, harm the pool, and return."""
    ids = words(1000, seed)
    engine.use(None)
    engine.server.flush()
    engine.server.generate(ids[:768], 1)
    began = time.monotonic()
    replayed = engine.server.generate(ids)
    patience = time.monotonic() - began + DEADLINE + NOISE
    engine.use(valkey.url, DEADLINE)
    engine.server.flush()
    engine.publish(ids[:768])
    harm(ids)
    began = time.monotonic()
    answer = engine.server.generate(ids)
    return Turn(replayed, answer, time.monotonic() - began, patience)


def held(turn: Turn) -> None:
    """The turn was answered by replay, and in time."""
    assert same(turn.answer, turn.replayed)
    assert turn.seconds < turn.patience


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A server that may be harmed."""
    server = ValkeyServer(tmp_path / "log")
    yield server
    server.thaw()
    server.kill()


def test_a_frozen_pool_costs_one_deadline(engine: Engine, own: ValkeyServer) -> None:
    held(returning(engine, own, 20, lambda _: own.freeze()))
    assert engine.count("swapool_get_total", result="timeout") >= 1


@pytest.mark.nightly
def test_a_pool_that_died_costs_nothing(engine: Engine, own: ValkeyServer) -> None:
    held(returning(engine, own, 21, lambda _: own.kill()))


def change(own: ValkeyServer, place: int) -> None:
    """Change a byte of every window."""
    with own.client() as client:
        for key in client.scan_iter():
            value = bytearray(cast("bytes", client.get(key)))
            value[place] ^= 1
            client.set(key, bytes(value))


@pytest.mark.parametrize(
    "place",
    [20, pytest.param(64, marks=pytest.mark.nightly), pytest.param(-1, marks=pytest.mark.nightly)],
    ids=["layout", "first row", "last row"],
)
def test_a_pool_that_lies_is_not_believed(engine: Engine, own: ValkeyServer, place: int) -> None:
    before = engine.count("swapool_get_total", result="mismatch")
    held(returning(engine, own, 22 + place, lambda _: change(own, place)))
    assert engine.count("swapool_get_total", result="mismatch") == before + 1


@pytest.mark.nightly
def test_a_full_pool_refuses_windows_and_nothing_else(engine: Engine, own: ValkeyServer) -> None:
    with own.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1mb")
    ids = words(1000, 30)
    exact = uninterrupted(engine, ids)
    engine.use(own.url)
    full = engine.count("swapool_put_total", result="full")
    engine.server.flush()
    assert same(engine.server.generate(ids), exact)
    until(lambda: engine.count("swapool_put_total", result="full") > full, 10)


class Conversations:
    """Returning conversations over some engines that share a pool.

    An uninterrupted run is the same prompt under a salt of its own, which nothing is cached under.

    Args:
        engines: Each turn goes to any of them.
        seed: Of everything random.

    Attributes:
        hits: Turns that began with cached pages.
        inexact: Those of them whose answer was not that of an uninterrupted run, as (seed, turn).
    """

    def __init__(self, engines: Sequence[Engine], seed: int) -> None:
        self.hits = 0
        self.inexact: list[tuple[int, int]] = []
        self._engines = engines
        self._random = random.Random(seed)

    def hold(self, turns: int) -> None:
        """Hold one: each prompt is the one before, its answer, and new words that end in the next chunk."""
        # Cached pages of earlier ones would scatter this one's: the engine on a CPU rounds by where pages are.
        for engine in self._engines:
            engine.server.flush()
        seed = self._random.getrandbits(32)
        ids: list[int] = []
        for turn in range(turns):
            ids += words((turn + 1) * CHUNK + self._random.randrange(250) - len(ids), seed + turn)
            engine = self._random.choice(self._engines)
            answer = engine.publish(ids, 6)
            if answer.cached:
                self.hits += 1
                salted = {**sglang.question(ids, len(answer.ids)), "cache_salt": f"{seed} {turn}"}
                exact = sglang.Generated.of(engine.server.post("/generate", salted))
                if not same(answer, exact):
                    self.inexact.append((seed, turn))
            ids += answer.ids


@pytest.mark.nightly
def test_returning_conversations_are_exact(engine: Engine, valkey: ValkeyServer) -> None:
    engine.use(valkey.url)
    avoided = engine.count("swapool_replay_avoided_tokens_total")
    talk = Conversations([engine], seed=1)
    for _ in range(10):
        talk.hold(turns=2)
    assert talk.hits == 10
    assert engine.count("swapool_replay_avoided_tokens_total") == avoided + 10 * 128
    assert talk.inexact == []


@pytest.mark.nightly
@pytest.mark.timeout(5400)
def test_two_engines_share_their_windows(engine: Engine, valkey: ValkeyServer, start: Callable[[str], Engine]) -> None:
    """200 conversations of three turns, each on either engine: a turn may find the window that the other has left."""
    engines = [engine, start("second")]
    for each in engines:
        each.use(valkey.url)
    avoided = [each.count("swapool_replay_avoided_tokens_total") for each in engines]
    replayed = [each.count("swapool_replay_tokens_total") for each in engines]
    talk = Conversations(engines, seed=2)
    for _ in range(200):
        talk.hold(turns=3)
    spared = sum(
        each.count("swapool_replay_avoided_tokens_total") - before
        for each, before in zip(engines, avoided, strict=True)
    )
    assert talk.hits > 200
    assert spared == 128 * talk.hits
    assert [each.count("swapool_replay_tokens_total") for each in engines] == replayed
    assert talk.inexact == []

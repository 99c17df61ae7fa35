"""What a window saves a returning turn: its time to first token on a real server, the pool hitting, missing and frozen.

Every turn goes on from a first one of its own, whose pages the server still has. What the pool answers is checked in
the server's own counts.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import valkey

from bench.epd.fleet import HOST
from bench.spread import Spread
from bench.swapool import servers
from bench.worker import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bench.swapool.servers import RunningPool

State = Literal["no pool", "hit", "miss", "frozen, first", "frozen, next"]
STATES: Final[tuple[State, ...]] = ("no pool", "hit", "miss", "frozen, first", "frozen, next")
MEMORY: Final = 256 << 20
TTL: Final = 300.0
DEADLINE: Final = 0.02
PROMPT: Final = 2048
_WORDS: Final = 256
_FLAGS: Final = ("--encoder-replay", "on", "--vision", "off")
_SECONDS: Final = 60.0
_QUIET: Final = 0.1
# Before every timed turn, whatever its state needs.
_PAUSE: Final = 0.3


class Unexpected(RuntimeError):
    """The pool did something else than what was to be timed."""


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: In each of them every state has its turn.
        tokens: That a turn adds to its conversation.
    """

    rounds: int = 9
    tokens: tuple[int, ...] = (64, 256, 1024)


@dataclass(frozen=True)
class Point:
    """One state.

    Attributes:
        tokens: That a turn adds to `PROMPT` earlier ones.
        milliseconds: To the first token.
    """

    state: State
    tokens: int
    milliseconds: Spread

    def to_json(self) -> dict[str, Any]:
        """All of it, rounded."""
        return {"state": self.state, "tokens": self.tokens, "milliseconds": self.milliseconds.to_json()}


class _Server:
    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, ids: Sequence[int]) -> float:
        """Send a prompt; milliseconds until its first and only token."""
        body = {"input_ids": list(ids), "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/generate", data, kind)  # noqa: S310 - http, ours
        begun = time.perf_counter()
        urllib.request.urlopen(request, timeout=_SECONDS).read()  # noqa: S310 - as above
        return 1000 * (time.perf_counter() - begun)

    def counts(self) -> dict[str, Any]:
        """What the server reports about its pool."""
        with urllib.request.urlopen(f"{self._url}/server_info", timeout=_SECONDS) as answer:  # noqa: S310 - as above
            result: dict[str, Any] = json.load(answer)["swa_pool"]
        return result

    def settle(self) -> dict[str, Any]:
        """Wait until the windows that were handed in are stored or dropped."""
        before: dict[str, Any] = {}
        while before != (now := self.counts()):
            before = now
            time.sleep(_QUIET)
        return before


class _Bench:
    """A server with a pool, another without, and conversations that nobody has had before."""

    def __init__(self, pooled: _Server, alone: _Server, pool: RunningPool) -> None:
        self._pooled = pooled
        self._alone = alone
        self._pool = pool
        self._random = random.Random(0)  # noqa: S311 - meaningless words

    def round(self, tokens: int) -> dict[State, float]:
        """Each state once."""
        valve = self._pool.servers[0]
        result: dict[State, float] = {}
        first, then = self._conversation(self._alone, tokens)
        result["no pool"] = self._timed(self._alone, [*first, *then])
        result["hit"] = self._expect("hits", tokens)
        result["miss"] = self._expect("misses", tokens, forgotten=True)
        talks = [self._conversation(self._pooled, tokens) for _ in range(2)]
        hits = self._pooled.settle()["hits"]
        valve.freeze()
        try:
            for state, (first, then) in zip(STATES[3:], talks, strict=True):
                result[state] = self._timed(self._pooled, [*first, *then])
        finally:
            valve.thaw()
        if self._pooled.counts()["hits"] != hits:
            raise Unexpected("a frozen pool has answered")
        self._recover(tokens)
        return result

    def _expect(self, count: str, tokens: int, *, forgotten: bool = False) -> float:
        first, then = self._conversation(self._pooled, tokens)
        before = self._pooled.settle()[count]
        if forgotten:
            with contextlib.closing(valkey.Valkey(host=HOST, port=self._pool.port)) as client:
                client.flushall()
        milliseconds = self._timed(self._pooled, [*first, *then])
        if (now := self._pooled.counts())[count] != before + 1:
            raise Unexpected(f"{count} of the pool did not go from {before} to {before + 1}: {now}")
        return milliseconds

    def _timed(self, server: _Server, ids: Sequence[int]) -> float:
        time.sleep(_PAUSE)
        return server.ask(ids)

    def _recover(self, tokens: int) -> None:
        """Wait until the pool is asked again."""
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(Unexpected):
                self._expect("hits", tokens)
                return
        raise Unexpected("the pool does not hit after it was frozen")

    def _conversation(self, server: _Server, tokens: int) -> tuple[list[int], list[int]]:
        """Have the first turn of a new one; its tokens, and those that the second adds."""
        ids = [self._random.randrange(_WORDS) for _ in range(PROMPT + tokens)]
        server.ask(ids[:PROMPT])
        return ids[:PROMPT], ids[PROMPT:]


def measure(effort: Effort, folder: Path, tell: Callable[[str], None]) -> list[Point]:
    """Start a pool and two servers, and have conversations.

    Args:
        effort: How much.
        folder: For logs and the pool's configuration.
        tell: Progress.

    Raises:
        NotStarted: A process did not start.
        Unexpected: The pool did not do what was to be timed.
    """
    config = folder / "pool.json"
    with servers.running("valkey", MEMORY, folder) as pool:
        config.write_text(json.dumps({"address": pool.address, "ttl": TTL, "deadline": DEADLINE}), encoding="utf-8")
        with serving(*_FLAGS, "--swa-pool-config", str(config)) as pooled, serving(*_FLAGS) as alone:
            bench = _Bench(_Server(pooled.url), _Server(alone.url), pool)
            tell("turns: warming up")
            bench.round(effort.tokens[0])
            points = []
            for tokens in effort.tokens:
                rounds = []
                for number in range(effort.rounds):
                    tell(f"turns of {tokens} more tokens: round {number + 1} of {effort.rounds}")
                    rounds.append(bench.round(tokens))
                points += [Point(state, tokens, Spread.of([each[state] for each in rounds])) for state in STATES]
            return points

"""The whole unmodified engine, served on a CPU by the plugin's extra."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support import sglang
from tests.support.ports import HOST, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)


def prompt(length: int, seed: int = 1) -> list[int]:
    """Token ids that no marker is among."""
    rng = random.Random(seed)
    return [rng.randrange(270, 500) for _ in range(length)]


def metric(server: sglang.Server, name: str) -> float:
    """The sum of a counter over its labels."""
    lines = [line for line in server.get("/metrics").splitlines() if line.startswith((name + "{", name + " "))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_an_answer_is_the_same_whenever_it_is_asked_for(server: sglang.Server) -> None:
    first, second = (server.generate(prompt(40)) for _ in range(2))
    assert first == second
    assert len(first.ids) == 6
    assert all(value < 0 for value in first.logprobs)


def test_a_prompt_of_several_chunks_finds_its_pages_again(server: sglang.Server) -> None:
    """Longer than a chunk of 512 and than the window; the second turn begins with two whole pages of the first."""
    first = server.generate(prompt(900, 2))
    again = server.generate(prompt(900, 2)[:700])
    assert (first.cached, again.cached) == (0, 512)
    assert metric(server, "sglang:prompt_tokens_total") >= 1600


def test_requests_together_are_answered_like_requests_alone(server: sglang.Server) -> None:
    """But for what a batch's shape rounds otherwise. All fit one chunk: replay depends on where chunks end."""
    prompts = [prompt(30 + 20 * i, 10 + i) for i in range(4)]
    server.flush()
    alone = [server.generate(ids) for ids in prompts]
    server.flush()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(server.generate, prompts))
    for one, other in zip(alone, together, strict=True):
        assert one.logprobs[0] == pytest.approx(other.logprobs[0], abs=0.1)


@pytest.fixture(scope="module")
def pair(
    engine_python: Path, plugin_path: Path, random_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[sglang.Server, sglang.Server]]:
    """A prefill and a decode that exchange pages by Mooncake over TCP."""
    folder = tmp_path_factory.mktemp("pair")
    backend = ("--disaggregation-transfer-backend", "mooncake_tcp", "--disaggregation-bootstrap-port")
    port = str(free_port())
    # As the server that it is compared with: what replay makes of a prefix hit is not what the first answer was.
    replay = {"prefill": ("--enable-encoder-swa-bounded-replay",), "decode": ()}
    with ThreadPoolExecutor(2) as pool:
        starts = [
            pool.submit(
                sglang.Server.start, engine_python, plugin_path, random_model, folder / f"{mode}.log",
                "--disaggregation-mode", mode, *replay[mode], *backend, port,
            )
            for mode in ("prefill", "decode")
        ]  # fmt: skip
        servers = [start.result() for start in starts if start.exception() is None]
    try:
        prefill, decode = [start.result() for start in starts]
        yield prefill, decode
    finally:
        for server in servers:
            server.stop()


def ask_both(pair: tuple[sglang.Server, sglang.Server], ids: list[int], room: int) -> sglang.Generated:
    """Send a request to both legs, as the router does; decode's answer."""
    prefill, decode = pair
    port = prefill.flags[-1]
    body = {
        **sglang.question(ids, 6), "bootstrap_host": HOST, "bootstrap_port": int(port), "bootstrap_room": room,
    }  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        legs = [pool.submit(server.post, "/generate", body) for server in (prefill, decode)]
        legs[0].result()
        return sglang.Generated.of(legs[1].result())


@pytest.mark.nightly
def test_prefill_and_decode_answer_like_one_server(
    server: sglang.Server, pair: tuple[sglang.Server, sglang.Server]
) -> None:
    """With prompts of several chunks and with prefix hits, which are sent early while overlap scheduling is on."""
    server.flush()
    for room, length in enumerate((300, 300, 900, 1100), 1):
        ids = prompt(length, 3)
        expected, actual = server.generate(ids), ask_both(pair, ids, room)
        assert (actual.ids, actual.logprobs) == (expected.ids, expected.logprobs), length

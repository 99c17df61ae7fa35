"""Our client of the encoder directory against SGLang's own, `EncoderBootstrapServer`, in the engine's environment."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web

from epd_workers.registrar.directory import Directory, DirectoryError
from epd_workers.registrar.membership import directory_difference
from tests.support.engine import next_host
from tests.support.polling import eventually
from tests.support.ports import free_port
from tools.differential import environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator
    from pathlib import Path

pytestmark = pytest.mark.nightly

# The engine's module loads for half a minute on a small machine.
START_SECONDS = 180
SERVER = """
import sys, threading
from sglang.srt.disaggregation.encoder.receiver import EncoderBootstrapServer
EncoderBootstrapServer("127.0.0.1", int(sys.argv[1]), sys.argv[2:], health_check_interval=0.2, health_check_timeout=0.5)
threading.Event().wait()
"""
# Static, as from --encoder-urls, in a spelling of its own; nothing listens there, and three probes take 0.6 s.
STATIC = "http://127.9.9.9:1/"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A directory of the engine's own, in a process of its own."""
    python = environment.interpreter()
    env = {**os.environ, **environment.CACHES, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    if subprocess.run([python, "-c", "import fastapi, uvicorn"], env=env, check=False, capture_output=True).returncode:
        pytest.skip("requirements/engine.txt has no fastapi and uvicorn, which the engine's directory is made of")
    port = free_port()
    log: Path = tmp_path_factory.mktemp("directory") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([python, "-c", SERVER, str(port), STATIC], env=env, stdout=out, stderr=out)
    try:
        yield f"http://127.0.0.1:{port}"
        assert process.poll() is None, log.read_text()[-2000:]
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def directory(session: aiohttp.ClientSession, base: str) -> Directory:
    directory = Directory(session, 0)

    async def answers() -> bool:
        try:
            await directory.encoders(base)
        except DirectoryError:
            return False
        return True

    await eventually(answers, START_SECONDS, every=0.2)
    return directory


async def reconcile(directory: Directory, base: str, wanted: Collection[str], mute: Collection[str] = ()) -> list[str]:
    """What the loop does with one prefill."""
    register, unregister = directory_difference(wanted, await directory.encoders(base), mute)
    for url in register:
        await directory.register(base, url)
    for url in unregister:
        await directory.unregister(base, url)
    return await directory.encoders(base)


class Encoder:
    """Something whose `/health` answers while it runs."""

    def __init__(self) -> None:
        self.host, self.port = next_host(), free_port()
        self.url = f"http://{self.host}:{self.port}"
        self.status = 200

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.status)


@pytest.fixture
async def encoder() -> AsyncIterator[Encoder]:
    encoder = Encoder()
    app = web.Application()
    app.router.add_get("/health", encoder.health)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, encoder.host, encoder.port).start()
    yield encoder
    await runner.cleanup()


async def test_encoders_come_and_go_and_repeating_it_is_harmless(
    directory: Directory, base: str, encoder: Encoder
) -> None:
    assert await reconcile(directory, base, {encoder.url}) == [encoder.url], "what it was started with is struck"
    await directory.register(base, encoder.url)
    assert await directory.encoders(base) == [encoder.url]
    assert await reconcile(directory, base, set()) == []
    await directory.unregister(base, encoder.url)


async def test_an_address_is_struck_in_the_spelling_that_it_was_given_in(directory: Directory, base: str) -> None:
    await directory.register(base, STATIC)
    await directory.unregister(base, STATIC.rstrip("/"))
    assert await directory.encoders(base) == [STATIC]
    assert await reconcile(directory, base, set()) == []


async def test_an_eviction_stands_unless_the_encoder_computes(
    directory: Directory, base: str, encoder: Encoder
) -> None:
    async def listed() -> bool:
        return encoder.url in await directory.encoders(base)

    async def evicted() -> bool:
        return not await listed()

    await directory.register(base, encoder.url)
    encoder.status = 503
    await eventually(evicted, 10, every=0.05)
    assert await reconcile(directory, base, {encoder.url}, mute={encoder.url}) == []
    assert await reconcile(directory, base, {encoder.url}) == [encoder.url], "a registration ends an eviction"
    await eventually(evicted, 10, every=0.05)
    encoder.status = 200
    await eventually(listed, 10, every=0.05)
    assert await reconcile(directory, base, set()) == []


async def test_an_empty_address_is_refused(directory: Directory, base: str) -> None:
    with pytest.raises(DirectoryError, match="answered 400"):
        await directory.register(base, "")

"""The whole data path on one machine: real router, registrar loop, and Reference engines as processes of their own."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from PIL import Image

from tests.support.engine import Ports, next_host
from tests.support.registrar import Pods

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.registrar import Harness
    from tests.support.smg import Smg


def picture() -> list[dict[str, Any]]:
    data = io.BytesIO()
    Image.new("RGB", (60, 40), "red").save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    return [
        {
            "role": "user",
            "content": [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}],
        }
    ]


class Reference:
    """One Reference engine in a process of its own, on an address of its own."""

    def __init__(self, role: str, ports: Ports, log: Path) -> None:
        self.role = role
        self.host = next_host()
        self._ports = ports
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self, session: aiohttp.ClientSession) -> None:
        self._launch()
        async with asyncio.timeout(90):
            while not await self._ready(session):
                assert self.runs, self._log.read_text()[-2000:]
                await asyncio.sleep(0.2)

    def _launch(self) -> None:
        flags = {
            "role": self.role,
            "host": self.host,
            "port": self._ports.engine,
            "bootstrap-port": self._ports.bootstrap,
            "encoder-bootstrap-port": self._ports.encoder,
            "served-model-name": "dsv41",
            "context-length": 4096,
            "encode-timeout": 5,
        }
        words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
        with self._log.open("ab") as log:
            # It outlives the event loop of a test.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "epd_workers.reference.main", *words], stdout=log, stderr=log
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def requests(self, session: aiohttp.ClientSession) -> int:
        """Requests that the engine itself says it still holds."""
        async with session.get(f"http://{self.host}:{self._ports.engine}/v1/loads") as answer:
            return sum(int(load["num_total_reqs"]) for load in (await answer.json())["loads"])

    async def _ready(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"http://{self.host}:{self._ports.engine}/health") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


class Trio:
    """An encode, a prefill and a decode engine."""

    def __init__(self, folder: Path) -> None:
        self.ports = Ports()
        self.encode, self.prefill, self.decode = (
            Reference(role, self.ports, folder / f"{role}.log") for role in ("encode", "prefill", "decode")
        )

    @property
    def all(self) -> tuple[Reference, ...]:
        return self.encode, self.prefill, self.decode


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """The processes of all tests: each takes seconds to start."""
    trio = Trio(tmp_path_factory.mktemp("engines"))
    yield trio
    for engine in trio.all:
        engine.kill()


@pytest.fixture
async def pods(engines: Trio) -> Pods:
    """The pods that a test says exist, on the ports of the engines."""
    return Pods(engines.ports)


@pytest.fixture
async def trio(engines: Trio, pods: Pods, harness: Harness, smg: Smg) -> Trio:
    """Running engines, known to a router and a registrar that are new."""
    await asyncio.gather(*(engine.start(smg.session) for engine in engines.all if not engine.runs))
    for engine in engines.all:
        pods.add(engine)
    await harness.until(lambda: list(harness.states().values()) == ["ready", "ready"], 30)
    await harness.until(lambda: [e["missing"] for e in harness.state()["encoders"]] == [[]], 30)
    return engines


def content(answer: tuple[int, str]) -> str:
    status, text = answer
    assert status == 200, text
    return str(json.loads(text)["choices"][0]["message"]["content"])


def chat(smg: Smg, **changes: Any) -> Any:
    return smg.chat(**{"max_tokens": 8, "temperature": 0, **changes})


async def test_images_text_and_the_loss_of_a_decode(trio: Trio, harness: Harness, pods: Pods, smg: Smg) -> None:
    text, image = content(await chat(smg)), content(await chat(smg, messages=picture()))
    assert text
    assert image
    body = {"model": "dsv41", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    body |= {"max_tokens": 3000, "ignore_eos": True}
    async with smg.session.post(f"{smg.url}/v1/chat/completions", json=body) as stream:
        assert stream.status == 200
        await stream.content.readline()
        trio.decode.kill()
        assert '"stream_error"' in (await stream.read()).decode()
    status, _ = await asyncio.wait_for(chat(smg), 10)
    assert status in {502, 503}

    async def idle() -> bool:
        return await trio.prefill.requests(smg.session) == 0

    await harness.until(idle)
    await trio.decode.start(smg.session)
    await harness.until(lambda: _same(smg, text), 30)
    assert content(await chat(smg, messages=picture())) == image


async def test_a_restarted_prefill_and_a_lost_encoder(trio: Trio, harness: Harness, pods: Pods, smg: Smg) -> None:
    text, image = content(await chat(smg)), content(await chat(smg, messages=picture()))
    trio.prefill.kill()
    await trio.prefill.start(smg.session)
    await harness.until(lambda: _same(smg, text), 30)
    await harness.until(lambda: [e["missing"] for e in harness.state()["encoders"]] == [[]], 30)
    assert content(await chat(smg, messages=picture())) == image
    trio.encode.kill()
    pods.set([pod for pod in pods.pods or [] if pod.role != "encode"])
    await harness.until(lambda: harness.state()["encoders"] == [])
    status, body = await asyncio.wait_for(chat(smg, messages=picture()), 15)
    assert status == 503, body
    assert "encoder" in json.loads(body)["error"]["message"]
    assert content(await chat(smg)) == text


async def _same(smg: Smg, text: str) -> bool:
    status, body = await chat(smg)
    return status == 200 and str(json.loads(body)["choices"][0]["message"]["content"]) == text

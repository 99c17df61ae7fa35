from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import math
import os
import pathlib
import random
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import torch
from PIL import Image

from epd_workers.reference.serving.options import parse
from epd_workers.reference.serving.server import Server
from tests.ports import free_ports
from tests.reference.serving import tiny

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

torch.set_num_threads(1)

SMALL_PICTURE = 5
"""Rows of a picture of 60 x 40 pixels: start, two cells, a newline, end."""
CHAT = "/v1/chat/completions"
HOST = "127.0.0.1"
# Exact, so that a pair, one server, a prefix hit and a cold start all say the same.
EXACT = ("--decoder-replay", "off")
DEFAULTS = ("--page-size", "4", "--context-length", "192", "--max-total-tokens", "2048", "--chunked-prefill-size", "16")
# Patient, so that a busy machine changes no outcome: what must happen at once is held far below these bounds.
PATIENT = ("--handshake-timeout", "30", "--silence-timeout", "30", "--encode-timeout", "30", "--image-timeout", "30")
SHORT = ("--handshake-timeout", "0.5", "--silence-timeout", "5")
AT_ONCE_SECONDS = 10.0


async def wait_for(check: Any, seconds: float = 40) -> None:
    async with asyncio.timeout(seconds):
        while not await check():  # noqa: ASYNC110 - other processes set no events
            await asyncio.sleep(0.1)


def png(color: str = "red", size: tuple[int, int] = (60, 40)) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", size, color).save(data, "PNG")
    return data.getvalue()


def data_url(color: str = "red") -> str:
    return "data:image/png;base64," + base64.b64encode(png(color)).decode()


def chat(content: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": "reference", "messages": [{"role": "user", "content": content}], "max_tokens": 6, "temperature": 0}
    return body | fields


LONG = chat("go on", max_tokens=2000, ignore_eos=True)


def with_images(text: str, *urls: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]


def alike(left: Any, right: Any) -> bool:
    """Equal JSON values but for the last bits of numbers: a batch adds up in another order than one alone."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(alike(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-5, abs_tol=1e-5)
    return bool(left == right)


@dataclass
class Reply:
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def text(self) -> str:
        content: str = self.body["choices"][0]["message"]["content"]
        return content

    @property
    def code(self) -> str:
        code: str = self.body["error"]["code"]
        return code

    @property
    def message(self) -> str:
        message: str = self.body["error"]["message"]
        return message


@dataclass
class Running:
    """A server in this process, on real sockets."""

    server: Server
    session: aiohttp.ClientSession
    role: str

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server.ports.http}"

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(self.url + path, json=body, headers=names) as answer:
            return Reply(answer.status, await answer.json(), dict(answer.headers))

    async def get(self, path: str) -> Reply:
        async with self.session.get(self.url + path) as answer:
            body = await (answer.json() if answer.content_type == "application/json" else answer.text())
            return Reply(answer.status, body, dict(answer.headers))

    async def idle(self, seconds: float = AT_ONCE_SECONDS) -> None:
        """Wait until nothing is left in the loads that this server reports."""
        async with asyncio.timeout(seconds):
            while await self.busy():  # noqa: ASYNC110 - that is what is tested
                await asyncio.sleep(0.02)

    async def busy(self) -> dict[str, Any]:
        load = (await self.get("/v1/loads")).body["loads"][0]
        counts = {
            name: load[name] for name in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "num_total_reqs")
        }
        queues = {name: value for name, value in load["disaggregation"].items() if name.endswith("_reqs")}
        return {name: value for name, value in (counts | queues).items() if value}


@dataclass
class Program:
    """One running ``epd-reference``."""

    process: asyncio.subprocess.Process
    port: int
    bootstrap: int
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def post(self, **fields: object) -> tuple[int, str]:
        async with self.session.post(self.url + CHAT, json=LONG | fields) as answer:
            return answer.status, await answer.text()

    async def ready(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with self.session.get(f"{self.url}/ready") as answer:
                return answer.status == 200
        return False

    async def busy(self) -> bool:
        async with self.session.get(f"{self.url}/v1/loads") as answer:
            load = (await answer.json())["loads"][0]
            return bool(load["num_total_reqs"] or load["num_used_tokens"])


@dataclass
class Fleet:
    """Starts servers and sends requests to pairs of them as the router does."""

    session: aiohttp.ClientSession
    exits: contextlib.AsyncExitStack
    checkpoint: Path
    running: list[Running] = field(default_factory=list)
    rng: random.Random = field(default_factory=random.Random)

    async def start(self, role: str, *flags: str) -> Running:
        ports = ("--port", "0", "--bootstrap-port", "0", "--encoder-bootstrap-port", "0")
        path = ("--model-path", str(self.checkpoint))
        options = parse(["--role", role, *ports, *DEFAULTS, *EXACT, *PATIENT, *path, *flags])
        server = Server(options, tiny.load(pathlib.Path(str(options.model_path)), options.context_length))
        await server.start()
        self.exits.push_async_callback(server.stop, 0)
        started = Running(server, self.session, role)
        self.running.append(started)
        return started

    async def register(self, prefill: Running, *encoders: Running) -> None:
        for encoder in encoders:
            url = f"http://{HOST}:{prefill.server.ports.encoders}/register_encoder_url"
            async with self.session.post(url, json={"url": encoder.url}) as answer:
                assert answer.status == 200

    def meeting(self, prefill: Running, count: int | None = None) -> dict[str, Any]:
        port = prefill.server.ports.bootstrap
        if count is None:
            return {"bootstrap_host": HOST, "bootstrap_port": port, "bootstrap_room": self.rng.getrandbits(62)}
        rooms = [self.rng.getrandbits(62) for _ in range(count)]
        return {"bootstrap_host": [HOST] * count, "bootstrap_port": [port] * count, "bootstrap_room": rooms}

    async def pair(
        self, prefill: Running, decode: Running, body: dict[str, Any], path: str = CHAT, count: int | None = None
    ) -> tuple[Reply, Reply]:
        body = body | self.meeting(prefill, count)
        first, second = await asyncio.gather(prefill.post(path, body), decode.post(path, body))
        return first, second

    async def idle(self) -> None:
        for server in self.running:
            await server.idle()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
async def fleet(checkpoint: Path) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as exits:
        session = await exits.enter_async_context(aiohttp.ClientSession())
        yield Fleet(session, exits, checkpoint)


@pytest.fixture
async def program(fleet: Fleet) -> AsyncIterator[Callable[..., Awaitable[Program]]]:
    started: list[Program] = []

    async def start(role: str, *flags: str) -> Program:
        port, bootstrap, encoders = free_ports(3)
        words = ["--role", role, "--port", str(port), "--bootstrap-port", str(bootstrap), *flags]
        words += ["--encoder-bootstrap-port", str(encoders), "--model-path", str(fleet.checkpoint)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "epd_workers.reference.main", *words, env=os.environ | {"POD_NAME": role}
        )
        made = Program(process, port, bootstrap, fleet.session)
        started.append(made)
        await wait_for(made.ready, 100)
        return made

    yield start
    for made in started:
        with contextlib.suppress(ProcessLookupError):
            made.process.kill()
        await made.process.wait()

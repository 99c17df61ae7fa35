from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
import pytest

from epd_workers.registrar.directory import Directory
from epd_workers.registrar.key import draw, read
from epd_workers.registrar.loop import Loop
from epd_workers.registrar.metrics import Metrics
from epd_workers.registrar.pod import Pod
from epd_workers.registrar.router import Router
from epd_workers.registrar.state import document
from tests.registrar.peers import Ports
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

CHAT = {"model": "dsv41", "messages": [{"role": "user", "content": "hi"}]}
# The flags that a plan gives a router with one prefill and one decode.
FLAGS = [
    *("--pd-disaggregation", "--host", "127.0.0.1", "--prefill-policy", "cache_aware", "--decode-policy", "least_load"),
    *("--worker-startup-check-interval", "1", "--worker-startup-timeout-secs", "10"),
    *("--health-check-interval-secs", "2", "--health-failure-threshold", "2", "--health-success-threshold", "1"),
    *("--disable-circuit-breaker", "--retry-max-retries", "2", "--history-backend", "none"),
    "--disable-tokenizer-autoload",
]


class Smg:
    """The real router, started by ``epd-registrar route``."""

    def __init__(self, folder: Path, session: aiohttp.ClientSession) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key_file = folder / "control-key"
        self.log = folder / "smg.log"
        self.session = session
        self.process: asyncio.subprocess.Process | None = None
        draw(self.key_file)
        self.key = read(self.key_file, "control")

    async def start(self, *options: str) -> None:
        flags = [*FLAGS, "--port", str(self.port), "--prometheus-port", str(free_port())]
        command = [sys.executable, "-m", "epd_workers.registrar.main", "route", "--control-key-file"]
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, str(self.key_file), *options, "--", *flags, stdout=log, stderr=log, start_new_session=True
            )
        for _ in range(300):
            assert self.process.returncode is None, self.log.read_text()
            with contextlib.suppress(aiohttp.ClientError):
                async with self.session.get(f"{self.url}/liveness"):
                    return
            await asyncio.sleep(0.1)
        raise AssertionError(self.log.read_text())

    async def stop(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        return await self.process.wait()

    async def call(self, method: str, path: str, key: str | None = None, json: Any = None) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self.session.request(method, self.url + path, headers=headers, json=json) as response:
            return response.status, await response.text()

    async def chat(self, **changes: Any) -> tuple[int, str]:
        return await self.call("POST", "/v1/chat/completions", json={**CHAT, **changes})


class Located(Protocol):
    """An engine, whatever runs it."""

    role: str
    host: str


class Pods:
    """The pods that a test says exist."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.pods: list[Pod] | None = []
        self.wake = asyncio.Event()
        self._made = 0

    def add(self, engine: Located, key: str = "k1", *, image: str = "sha256:a", name: str = "") -> Pod:
        self._made += 1
        pod = Pod(
            name=name or f"demo-{engine.role}-{self._made}",
            uid=f"uid-{self._made}",
            ip=engine.host,
            role=engine.role,
            key=key,
            revision="r1",
            image=image,
            ready=True,
            deleting=False,
            created=f"2026-01-01T00:{self._made:02}:00Z",
            bootstrap_port=self.ports.bootstrap if engine.role == "prefill" else None,
        )
        self.set([*(self.pods or []), pod])
        return pod

    def drop(self, pod: Pod) -> None:
        self.set([p for p in self.pods or [] if p.uid != pod.uid])

    def set(self, pods: list[Pod]) -> None:
        self.pods = pods
        self.wake.set()


class Harness:
    """A registrar loop on real router and scripted pods."""

    def __init__(self, smg: Smg, pods: Pods, session: aiohttp.ClientSession) -> None:
        ports = pods.ports
        self.metrics = Metrics()
        self.router = Router(session, smg.url, smg.key, engine_port=ports.engine)
        self.loop = Loop(
            pods,
            self.router,
            Directory(session, ports.encoder),
            self.metrics,
            pods.wake,
            engine_port=ports.engine,
            resync=0.5,
        )
        self._ports = ports

    def state(self) -> dict[str, Any]:
        return document(self.loop.view, pod="router-0", version="smg", engine_port=self._ports.engine)

    def states(self) -> dict[str, str]:
        return {worker["pod"]: worker["state"] for worker in self.state()["workers"]}

    def writes(self) -> float:
        lines = self.metrics.text().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("registrar_writes_total"))

    async def until(self, condition: Callable[[], bool | Awaitable[bool]], seconds: float = 15) -> None:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    result = condition()
                    if result if isinstance(result, bool) else await result:
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not reached in {seconds} s; state: {self.state()}") from None


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


@pytest.fixture
async def smg(tmp_path: Path, session: aiohttp.ClientSession) -> AsyncIterator[Smg]:
    smg = Smg(tmp_path, session)
    await smg.start()
    yield smg
    await smg.stop()


@pytest.fixture
async def pods() -> Pods:
    return Pods(Ports())


@pytest.fixture
async def harness(smg: Smg, pods: Pods, session: aiohttp.ClientSession) -> AsyncIterator[Harness]:
    harness = Harness(smg, pods, session)
    task = asyncio.create_task(harness.loop.run())
    yield harness
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

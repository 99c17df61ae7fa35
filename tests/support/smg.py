"""The real router, in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import aiohttp

from epd_workers.registrar.key import draw, read
from tests.support.polling import eventually
from tests.support.ports import free_port

if TYPE_CHECKING:
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
        await eventually(self._alive, 30, every=0.1, why=self.log.read_text)

    async def _alive(self) -> bool:
        assert self.process is not None
        assert self.process.returncode is None, self.log.read_text()
        with contextlib.suppress(aiohttp.ClientError):
            async with self.session.get(f"{self.url}/liveness"):
                return True
        return False

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

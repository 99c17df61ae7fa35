"""The servers of one topology behind the router, as processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

HOST: Final = "127.0.0.1"
READY_SECONDS: Final = 300.0
SILENT_SECONDS: Final = 120.0
SMG: Final = shutil.which("smg", path=str(Path(sys.executable).parent)) or "smg"
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LOG_LINES: Final = 15

TOPOLOGIES: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "aggregated": (("aggregated",),),
    "P/D": (("prefill", "--vision", "local"), ("decode",)),
    "E/P/D": (("encode",), ("prefill",), ("decode",)),
}
"""By name: the role of each server, and flags that are not its defaults."""


class NotStarted(RuntimeError):
    """A process ended or did not become ready; the message has the end of its log."""


@dataclass(frozen=True)
class Member:
    """One process."""

    name: str
    process: Process
    log: Path

    @property
    def cpu_seconds(self) -> float:
        """User and system seconds so far, of all its threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    async def until(self, check: Callable[[], Awaitable[bool]], seconds: float = READY_SECONDS) -> None:
        """Wait for a check.

        Raises:
            NotStarted: The process ended before, or it took too long.
        """
        what = f"was not ready within {seconds:g} s"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.process.returncode is None:
                    if await check():
                        return
                    await asyncio.sleep(0.2)
                what = f"ended with status {self.process.returncode}"
        tail = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])
        raise NotStarted(f"{self.name} {what}; its last lines:\n{tail}")


@dataclass(frozen=True)
class Fleet:
    """A running topology.

    Attributes:
        url: Of the router.
        members: Router and servers.
        session: For requests.
    """

    url: str
    members: tuple[Member, ...]
    session: aiohttp.ClientSession

    @property
    def cpu_seconds(self) -> float:
        """User and system seconds of all members so far."""
        return sum(member.cpu_seconds for member in self.members)


@dataclass(frozen=True)
class _Server:
    role: str
    member: Member
    port: int
    bootstrap: int
    encoders: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for made in sockets:
            made.bind((HOST, 0))
        return [made.getsockname()[1] for made in sockets]


@contextlib.asynccontextmanager
async def running(topology: str, flags: Sequence[str], folder: Path) -> AsyncIterator[Fleet]:
    """Start the router and the servers of a topology, wait until it can serve, and end them afterwards.

    Args:
        topology: Of `TOPOLOGIES`.
        flags: More of them for every server.
        folder: For logs.

    Raises:
        NotStarted: One of them did not start.
    """
    async with contextlib.AsyncExitStack() as exits:
        session = await exits.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_read=SILENT_SECONDS))
        )
        pairs = any(role == "prefill" for role, *_ in TOPOLOGIES[topology])
        router, url = await _router(exits, folder, pairs=pairs)
        servers = [await _server(exits, folder, role, [*own, *flags]) for role, *own in TOPOLOGIES[topology]]
        for server in servers:
            await server.member.until(partial(_answers, session, f"{server.url}/ready"))
        await router.until(partial(_answers, session, f"{url}/health"))
        await _introduce(session, servers)
        routed = [server for server in servers if server.role != "encode"]
        for server in routed:
            await _post(session, f"{url}/workers", _registration(server))
        await router.until(partial(_healthy, session, url, len(routed)))
        yield Fleet(url, (router, *(server.member for server in servers)), session)


async def _spawn(exits: contextlib.AsyncExitStack, name: str, folder: Path, command: Sequence[str]) -> Member:
    path = folder / f"{name}.log"
    with path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    exits.push_async_callback(_end, process)
    return Member(name, process, path)


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def _router(exits: contextlib.AsyncExitStack, folder: Path, *, pairs: bool) -> tuple[Member, str]:
    port, metrics = free_ports(2)
    command = [SMG, "launch", "--host", HOST, "--port", str(port), "--prometheus-port", str(metrics)]
    command += ["--policy", "round_robin", "--disable-circuit-breaker", "--retry-max-retries", "1"]
    command += ["--log-level", "warn"]
    command += ["--worker-startup-check-interval", "1", "--history-backend", "none", "--disable-tokenizer-autoload"]
    command += ["--health-check-interval-secs", "1", "--health-success-threshold", "1"]
    command += ["--pd-disaggregation"] if pairs else []
    return await _spawn(exits, "router", folder, command), f"http://{HOST}:{port}"


async def _server(exits: contextlib.AsyncExitStack, folder: Path, role: str, flags: Sequence[str]) -> _Server:
    port, bootstrap, encoders = free_ports(3)
    command = [sys.executable, "-m", "epd_workers.reference.main", "--role", role, "--host", HOST, *flags]
    command += ["--port", str(port), "--bootstrap-port", str(bootstrap), "--encoder-bootstrap-port", str(encoders)]
    return _Server(role, await _spawn(exits, role, folder, command), port, bootstrap, encoders)


async def _introduce(session: aiohttp.ClientSession, servers: Sequence[_Server]) -> None:
    for encoder in (server for server in servers if server.role == "encode"):
        for prefill in (server for server in servers if server.role == "prefill"):
            url = f"http://{HOST}:{prefill.encoders}/register_encoder_url"
            await _post(session, url, {"url": encoder.url})


def _registration(server: _Server) -> dict[str, Any]:
    if server.role == "aggregated":
        return {"url": server.url, "worker_type": "regular"}
    body: dict[str, Any] = {"url": server.url, "worker_type": server.role, "pairing_protocol": "bench"}
    return body | ({"bootstrap_port": server.bootstrap} if server.role == "prefill" else {})


async def _post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
    async with session.post(url, json=body) as answer:
        if answer.status not in {200, 202}:
            raise NotStarted(f"{url} answered {answer.status}: {await answer.text()}")


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with session.get(url) as answer:
            return answer.status == 200
    return False


async def _healthy(session: aiohttp.ClientSession, url: str, count: int) -> bool:
    async with session.get(f"{url}/readiness") as answer:
        return bool((await answer.json()).get("healthy_workers") == count)

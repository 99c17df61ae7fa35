"""A pool that comes, changes and goes with a file, while its user goes on."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, cast

import pytest

from epd_workers.swapool.address import engine
from epd_workers.swapool.connection import Connection
from epd_workers.swapool.history import PoolReport
from epd_workers.swapool.metrics import Metrics
from epd_workers.swapool.mooncake import Mooncake
from tests.ports import free_port
from tests.swapool.servers import ValkeyServer, until
from tests.swapool.windows import PATIENT, SLACK, SPACE, descriptors, key, rows, threads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from epd_workers.swapool.lookup import Lookup

MEMORY = "memory:?bytes=100000000"
PERIOD = 0.02


class Tied(Protocol):
    """Makes a connection that is closed after the test."""

    def __call__(self, **options: Any) -> Connection: ...


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pool.json"


@pytest.fixture
def tied(file: Path) -> Iterator[Tied]:
    with ExitStack() as stack:

        def make(**options: Any) -> Connection:
            options = {"metrics": Metrics(), "remote_only": False, "period": PERIOD, **options}
            connection = Connection(file, SPACE, **options)
            stack.callback(connection.close)
            return connection

        yield make


def say(file: Path, address: str, **more: Any) -> None:
    replace(file, json.dumps({"address": address, "deadline": PATIENT, **more}))


def replace(file: Path, text: str) -> None:
    """Write the file in one step, as whoever writes it should."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def begin(connection: Connection, number: int) -> Lookup:
    lookup = connection.begin(key(number).chain, key(number).position, lambda: None)
    assert lookup
    return lookup


def put(connection: Connection, number: int, *, replayed: bool = False) -> None:
    connection.put(key(number).chain, key(number).position, rows(key(number)), replayed=replayed)


def reads(connection: Connection, number: int) -> bool:
    """Whether this window is found; if it is, it is right."""
    window = begin(connection, number).wait()
    assert window is None or window.data == rows(key(number))
    return window is not None


def test_no_file_no_pool(tied: Tied) -> None:
    connection = tied()
    assert not connection.active
    assert connection.begin(key(1).chain, 1024, lambda: None) is None
    put(connection, 1)
    assert connection.report() is None


def test_there_from_the_start(tied: Tied, file: Path) -> None:
    say(file, MEMORY)
    connection = tied()
    assert connection.active
    put(connection, 1, replayed=True)
    reported = threading.Event()
    lookup = connection.begin(key(1).chain, key(1).position, reported.set)
    assert lookup
    assert lookup.ready
    assert reported.is_set()
    window = lookup.take()
    assert window
    assert (window.data, window.replayed) == (rows(key(1)), True)
    assert not reads(connection, 2)
    assert connection.report() == PoolReport("memory", hits=1, misses=1, stored=1)


def test_the_user_is_told_once_when_the_answer_is_there(tied: Tied, file: Path, server: ValkeyServer) -> None:
    say(file, server.url)
    connection = tied()
    put(connection, 1)
    until(lambda: reads(connection, 1))
    calls: list[bool] = []
    lookup = connection.begin(key(1).chain, key(1).position, lambda: calls.append(True))
    assert lookup
    until(lambda: calls)
    assert lookup.ready
    assert lookup.take()
    assert calls == [True]


def test_comes_changes_and_goes(tied: Tied, file: Path, server: ValkeyServer) -> None:
    connection = tied()
    before = threads()
    say(file, MEMORY)
    until(lambda: connection.active)
    put(connection, 1)
    assert reads(connection, 1)
    say(file, server.url)
    until(lambda: _engine(connection) == "valkey")
    assert not reads(connection, 1), "another pool holds other windows"
    put(connection, 2)
    until(lambda: reads(connection, 2))
    file.unlink()
    until(lambda: not connection.active)
    assert connection.report() is None
    until(lambda: threads() == before)


def test_an_empty_object_is_no_pool(tied: Tied, file: Path) -> None:
    say(file, MEMORY)
    connection = tied()
    replace(file, "{}")
    until(lambda: not connection.active)


def test_times_change_without_losing_a_window(tied: Tied, file: Path, server: ValkeyServer) -> None:
    say(file, server.url, ttl=300)
    connection = tied()
    put(connection, 1)
    until(lambda: reads(connection, 1))
    say(file, server.url, ttl=1000, deadline=0.5)
    until(lambda: begin(connection, 9).deadline - time.monotonic() < PATIENT - 1)
    assert 0.1 < begin(connection, 9).deadline - time.monotonic() <= 0.5
    put(connection, 2)
    until(lambda: reads(connection, 2))
    assert reads(connection, 1)
    with server.client() as client:
        lives = sorted(cast("int", client.pttl(name)) for name in client.scan_iter())
    assert lives == [pytest.approx(300_000, abs=30_000), pytest.approx(1_000_000, abs=30_000)]
    report = connection.report()
    assert report
    assert report.stored == 2, "the pool is the same"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is no JSON"),
        ("", "it is no JSON"),
        ("[]", "it is no JSON object"),
        ('{"address": "http://host"}', "'http' is no address of a window pool"),
        ('{"address": "valkey://host:99999999"}', "[Pp]ort"),
        ('{"address": "memory:?bytes=1", "ttl": -1}', "ttl is -1"),
    ],
)
def test_what_cannot_be_followed_changes_nothing(
    text: str, message: str, tied: Tied, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    say(file, MEMORY)
    connection = tied()
    put(connection, 1)
    replace(file, text)
    until(lambda: _fault(connection) == "Misconfigured")
    time.sleep(5 * PERIOD)
    assert reads(connection, 1)
    messages = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(messages) == 1
    assert f"{file}: " in messages[0]
    assert re.search(message, messages[0])
    say(file, MEMORY)
    until(lambda: _fault(connection) == "")
    assert reads(connection, 1), "the pool was never another"


def test_nothing_to_keep(tied: Tied, file: Path) -> None:
    """A server starts whatever the file says; its report says that the file says nothing."""
    file.write_text("nonsense")
    connection = tied()
    assert not connection.active
    assert connection.report() == PoolReport("", "Misconfigured")


def test_a_mounted_configmap(tied: Tied, file: Path, tmp_path: Path) -> None:
    """The kubelet's way: a file linked into a folder that is itself a link, which is replaced in one step."""

    def publish(name: str, address: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "pool.json").write_text(json.dumps({"address": address}))
        (tmp_path / "..new").symlink_to(name)
        (tmp_path / "..new").rename(tmp_path / "..data")

    publish("..one", MEMORY)
    file.symlink_to("..data/pool.json")
    connection = tied()
    put(connection, 1)
    assert reads(connection, 1)
    publish("..two", f"{MEMORY}0")
    until(lambda: not reads(connection, 1))
    assert connection.active
    (tmp_path / "..data").unlink()
    until(lambda: not connection.active)


def test_what_others_cannot_reach_is_no_pool_for_them(tied: Tied, file: Path, server: ValkeyServer) -> None:
    say(file, MEMORY)
    connection = tied(remote_only=True)
    assert not connection.active
    assert connection.report() is None
    say(file, server.url)
    until(lambda: connection.active)
    say(file, MEMORY)
    until(lambda: not connection.active)


def test_nobody_waits_for_a_server_that_hangs_when_it_is_replaced(tied: Tied, file: Path, server: ValkeyServer) -> None:
    say(file, server.url)
    connection = tied()
    put(connection, 1)
    until(lambda: reads(connection, 1))
    server.freeze()
    longest = 0.0
    for number in range(60):
        begun = time.perf_counter()
        put(connection, number)
        begin(connection, number)
        longest = max(longest, time.perf_counter() - begun)
        if number == 20:
            say(file, MEMORY)
        time.sleep(PERIOD / 2)
    assert longest < SLACK
    until(lambda: _engine(connection) == "memory")
    server.thaw()


def test_the_report_says_what_is_wrong_for_long(tied: Tied, file: Path) -> None:
    now = [0.0]
    say(file, f"valkey://127.0.0.1:{free_port()}", deadline=0.05)
    connection = tied(clock=lambda: now[0])
    assert _fault(connection) == ""
    assert not reads(connection, 1)
    now[0] += 11
    # The breaker lets a second one through half a second later; it fails as the first did.
    until(lambda: not reads(connection, 1) and _fault(connection))
    assert _fault(connection) == "Unreachable"
    say(file, MEMORY)
    until(lambda: _engine(connection) == "memory")
    assert _fault(connection) == "", "that was another server"


def test_closing_ends_every_thread(tied: Tied, file: Path, server: ValkeyServer) -> None:
    before = threads()
    say(file, server.url)
    connection = tied()
    assert threads() > before
    connection.close()
    assert threads() == before
    assert not connection.active


def test_a_pod_tells_mooncake_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def hostname(address: str) -> str:
        made = engine(address)
        assert isinstance(made, Mooncake)
        return made._given["hostname"]

    monkeypatch.delenv("POD_IP", raising=False)
    assert hostname("mooncake://master:1") == "127.0.0.1"
    monkeypatch.setenv("POD_IP", "10.1.2.3")
    assert hostname("mooncake://master:1") == "10.1.2.3"
    assert hostname("mooncake://master:1?hostname=10.9.9.9") == "10.9.9.9"


def _engine(connection: Connection) -> str:
    report = connection.report()
    return report.engine if report else ""


def _fault(connection: Connection) -> str:
    report = connection.report()
    assert report
    return report.fault


def test_a_pool_that_is_given_up_is_out_of_the_books_and_of_memory(tied: Tied, file: Path) -> None:
    metrics = Metrics()
    say(file, f"mooncake://127.0.0.1:{free_port()}")
    connection, before = tied(metrics=metrics), descriptors()

    def opened() -> float | None:
        return metrics.registry.get_sample_value("swapool_breaker_open", {"operation": "get"})

    until(lambda: begin(connection, 1).wait() is None and opened() == 1)
    pool = weakref.ref(cast("Any", connection)._tie.pool)
    replace(file, "{}")
    until(lambda: not connection.active)
    until(lambda: pool() is None)
    assert opened() == 0
    assert descriptors() < before

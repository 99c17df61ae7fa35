from __future__ import annotations

import itertools
import socket
from typing import TYPE_CHECKING

from tests.support import ports

if TYPE_CHECKING:
    import pytest


def test_no_port_is_given_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "one run")
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    shares = []
    for worker in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        shares.append(list(itertools.islice(ports.sequence(), len(ports.RANGE) // 3)))
    assert sorted(itertools.chain(*shares)) == list(ports.RANGE)


def test_runs_start_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    first = []
    for name in ("one run", "another run"):
        monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", name)
        first.append(next(ports.sequence()))
    assert first[0] != first[1]


def test_a_port_that_is_taken_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    (other,) = ports.free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(ports, "_ports", iter([taken, other]))
        assert ports.free_port() == other

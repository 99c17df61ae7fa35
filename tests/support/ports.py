"""Ports for the servers that tests start, each given out once in a run, whichever process of pytest asks."""

from __future__ import annotations

import itertools
import os
import random
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST: Final = "127.0.0.1"
# Below Kubernetes' node ports, and below what Linux gives to outgoing connections and to whoever binds port 0: between
# the choice of a port and its use nobody else is given it.
RANGE: Final = range(12000, 30000)


def sequence() -> Iterator[int]:
    """This process's share of the range, from another start in each run: several runs share a machine, too."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    start = random.Random(run).randrange(len(RANGE))
    return itertools.cycle([*RANGE[start:], *RANGE[:start]][worker::count])


_ports = sequence()


def free_port(host: str = HOST) -> int:
    """A TCP port on which nobody listens."""
    for port in _ports:
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError("the sequence of ports never ends")


def free_ports(count: int, host: str = HOST) -> list[int]:
    """Some ports, all different."""
    return [free_port(host) for _ in range(count)]

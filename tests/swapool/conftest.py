from __future__ import annotations

from contextlib import ExitStack, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from epd_workers.swapool.address import engine
from epd_workers.swapool.pool import WindowPool
from tests.swapool.servers import MooncakeMaster, MooncakeStore, Supervised, ValkeyServer
from tests.swapool.windows import SPACE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from epd_workers.swapool.key import Namespace


class Opening(Protocol):
    """Opens a pool that is closed after the test."""

    def __call__(self, address: str, space: Namespace = SPACE, **options: Any) -> WindowPool: ...


class Running(Protocol):
    """Starts ``epd-swapool``, which ends after the test, with all that it started."""

    def __call__(self, *words: str, environment: dict[str, str] | None = None) -> Supervised: ...


@pytest.fixture
def opened() -> Iterator[Opening]:
    with ExitStack() as stack:

        def make(address: str, space: Namespace = SPACE, **options: Any) -> WindowPool:
            pool = WindowPool(engine(address), space.largest, **options)
            stack.callback(pool.close)
            return pool

        yield make


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path / "valkey.log")
    yield server
    server.kill()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MooncakeMaster]:
    master = MooncakeMaster(tmp_path / "master.log")
    yield master
    master.kill()


@pytest.fixture
def store(master: MooncakeMaster, tmp_path: Path) -> Iterator[MooncakeStore]:
    store = MooncakeStore(tmp_path / "store.log", master.address)
    yield store
    store.kill()


@contextmanager
def supervisors(folder: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        numbers = count()

        def run(*words: str, environment: dict[str, str] | None = None) -> Supervised:
            server = Supervised(folder / f"{words[0]}-{next(numbers)}.log", *words, environment=environment)
            stack.callback(server.kill)
            return server

        yield run


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with supervisors(tmp_path) as run:
        yield run

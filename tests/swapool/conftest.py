from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from epd_workers.swapool.address import engine
from epd_workers.swapool.pool import WindowPool
from tests.support.swapool.pools import supervisors
from tests.support.swapool.servers import MooncakeMaster, MooncakeStore, ValkeyServer
from tests.support.swapool.windows import SPACE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from epd_workers.swapool.key import Namespace
    from tests.support.swapool.pools import Opening, Running


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


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with supervisors(tmp_path) as run:
        yield run

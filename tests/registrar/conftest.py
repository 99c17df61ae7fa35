from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.support.engine import Ports
from tests.support.registrar import Harness, Pods
from tests.support.smg import Smg

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


@pytest.fixture
async def smg(tmp_path: Path, session: aiohttp.ClientSession) -> AsyncIterator[Smg]:
    smg = Smg(tmp_path, session)
    await smg.start()
    yield smg
    await smg.stop()


@pytest.fixture
async def pods() -> Pods:
    return Pods(Ports())


@pytest.fixture
async def harness(smg: Smg, pods: Pods, session: aiohttp.ClientSession) -> AsyncIterator[Harness]:
    harness = Harness(smg, pods, session)
    task = asyncio.create_task(harness.loop.run())
    yield harness
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

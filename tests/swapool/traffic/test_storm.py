"""Minutes of traffic over pools that come and go."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.swapool.servers import ValkeyServer

if TYPE_CHECKING:
    from tests.swapool.traffic.site import Server, Traffic

pytestmark = pytest.mark.nightly


def threads(server: Server) -> int:
    return _status(server, "Threads:")


def resident(server: Server) -> int:
    """Bytes."""
    return 1024 * _status(server, "VmRSS:")


def _status(server: Server, name: str) -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_a_pool_that_comes_and_goes(traffic: Traffic, server: ValkeyServer, tmp_path: Path, how: str) -> None:
    """Both prefill servers answer all the while, rightly; and neither is larger afterwards than before."""
    await traffic.say(server.url, deadline=0.02)
    servers, current, ended = (*traffic.site.prefills, traffic.site.decode), server, asyncio.Event()
    # What every server makes once, it has made by then.
    for prefill in (0, 1):
        await traffic.go_on(await traffic.open(windows=False, prefill=1 - prefill), 100, prefill=prefill)
    made = [threads(each) for each in servers]
    sizes = [resident(each) for each in servers]
    counted = [0, 0]

    async def talk() -> None:
        for prefill in itertools.cycle((0, 1)):
            salt = await traffic.open(windows=False, prefill=1 - prefill)
            exact, _ = await traffic.go_on(salt, 60, prefill=prefill)
            counted[0] += exact
            counted[1] += 60
            if ended.is_set():
                return

    talking = asyncio.create_task(talk())
    try:
        for number, pause in enumerate((0.3, 1, 3, 10, 0.3, 1, 3, 30)):
            if how == "frozen":
                current.freeze()
            else:
                current.kill()
            await asyncio.sleep(pause)
            if how == "frozen":
                current.thaw()
            else:
                current = ValkeyServer(tmp_path / f"{number}.log", port=server.port)
            await asyncio.sleep(6)
        ended.set()
        await talking
    finally:
        current.kill()
    exact, asked = counted
    assert asked > 400
    assert 0 < exact < asked
    for each, threads_before, size in zip(servers, made, sizes, strict=True):
        assert threads(each) <= threads_before
        assert resident(each) - size < 64 << 20

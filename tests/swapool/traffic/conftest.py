from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.ports import free_port
from tests.reference.serving import tiny
from tests.swapool.traffic.site import Server, Site, Traffic, ends

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

TALKS, VERSIONS = 4, 8


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Servers that found nobody at their pool's address when they started."""
    folder = tmp_path_factory.mktemp("traffic")
    checkpoint = tiny.write(tmp_path_factory.mktemp("checkpoint"))
    configuration, pages = folder / "pool.json", folder / "pages"
    configuration.write_text(json.dumps({"address": f"valkey://127.0.0.1:{free_port()}"}))
    shared = ("--swa-pool-config", str(configuration), "--kv-disk-path", str(pages))
    replay = ("--encoder-replay", "on")
    servers = [
        *(Server("prefill", checkpoint, folder, *replay, *shared) for _ in range(2)),
        Server("decode", checkpoint, folder, *shared),
        Server("aggregated", checkpoint, folder, *replay),
    ]
    made = Site((servers[0], servers[1]), servers[2], servers[3], configuration, pages)
    try:
        asyncio.run(_prepare(made, servers))
        yield made
    finally:
        ends(servers)


async def _prepare(site: Site, servers: list[Server]) -> None:
    async with aiohttp.ClientSession() as session:
        traffic = Traffic(site, session)
        for server in servers:
            await traffic.until(lambda server=server: traffic.ready(server), 100)  # type: ignore[misc]
        await traffic.learn(TALKS, VERSIONS)


@pytest.fixture
async def traffic(site: Site) -> AsyncIterator[Traffic]:
    async with aiohttp.ClientSession() as session:
        made = Traffic(site, session)
        yield made
        assert not made.failed

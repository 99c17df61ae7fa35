from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epd_workers.reference.transfer.sender import PageServer
from epd_workers.reference.transfer.timeouts import Timeouts
from tests.reference.transfer.pair import LAYOUT, Pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    timeouts = Timeouts(handshake=0.6, hello=0.3, silence=0.6, heartbeat=0.1)
    server = PageServer(LAYOUT, timeouts)
    port = await server.start("127.0.0.1", 0)
    yield Pair(server, port, timeouts)
    await server.close()
    assert server.connections == 0

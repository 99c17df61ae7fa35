"""One of Mooncake's stores: lends its memory to the pool."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from epd_workers.swapool.agent import LONGEST_MESSAGE
from epd_workers.swapool.server.program import Figures, Health

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from epd_workers.swapool.server.options import StoreOptions

# Reading one's own memory proves nothing to others: the library is to go through the network even here.
SETTINGS: Final = MappingProxyType(
    {
        "MC_STORE_MEMCPY": "0",
        "MC_MIN_RPC_PORT": "15000",
        "MC_MAX_RPC_PORT": "15099",
        "MC_STORE_CLIENT_MIN_PORT": "12300",
        "MC_STORE_CLIENT_MAX_PORT": "12399",
        "MC_RPC_TIMEOUT_MS": "1000",
        "MC_RPC_CONNECT_TIMEOUT_MS": "1000",
        "MC_STORE_CLIENT_SETUP_RETRIES": "1",
        "MC_LOG_LEVEL": "ERROR",
        "GLOG_minloglevel": "2",
    }
)


class StoreProgram:
    """Runs `epd_workers.swapool.server.segment`.

    Args:
        options: What the command line asks for.
    """

    name = "mooncake-store"
    grace = 20.0
    environment: Mapping[str, str] = SETTINGS

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self.descriptors: Sequence[int] = (theirs.detach(),)
        self._asked = 0

    def command(self) -> Sequence[str | Path]:
        """Return the command line."""
        given = {**asdict(self._options), "control": self.descriptors[0]}
        return [sys.executable, "-m", "epd_workers.swapool.server.segment", json.dumps(given)]

    async def health(self) -> Health:
        """Return what the store says after it has put an object into its segment and read it back."""
        self._asked += 1
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._control, b"%d" % self._asked)
        while answer := await loop.sock_recv(self._control, LONGEST_MESSAGE):
            reply = json.loads(answer)
            # Answers to questions that were given up come late.
            if reply.pop("question") == self._asked:
                return Health(**reply)
        return Health.broken("the store's process ended")

    async def figures(self) -> Figures:
        """Return what it lends; what is in it, the master knows."""
        return Figures(capacity=self._options.memory)

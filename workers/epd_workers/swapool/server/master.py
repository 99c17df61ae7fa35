"""Mooncake's master: knows which store holds what, and holds nothing itself."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import aiohttp

from epd_workers.swapool.agent import LIBRARIES
from epd_workers.swapool.server.program import Figures, Health, MissingProgram, installed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from epd_workers.swapool.server.options import MasterOptions

# Published defaults have differed from the program's: nothing is left to them. A lease protects what is being read; a
# store that is gone for the last is forgotten, with all that it held.
LEASE: Final = "5s"
WATERMARK: Final = "0.90"
EVICTED: Final = "0.05"
CLIENT_SECONDS: Final = "10"


class MasterProgram:
    """Runs ``mooncake_master``.

    Args:
        options: What the command line asks for.
    """

    name = "mooncake-master"
    grace = 10.0
    environment: Mapping[str, str] = MappingProxyType({})
    descriptors: Sequence[int] = ()

    def __init__(self, options: MasterOptions) -> None:
        self._options = options
        self._address = f"http://127.0.0.1:{options.metrics_port}"

    def command(self) -> Sequence[str | Path]:
        """Return the command line, with every setting that matters spelt out.

        Raises:
            MissingProgram: The master is not installed.
        """
        try:
            program = installed("mooncake", "mooncake_master")
        except MissingProgram as error:
            raise MissingProgram(f"{error}: install {LIBRARIES}") from error
        return [
            *(program, "-rpc_address", "0.0.0.0", "-rpc_port", str(self._options.port)),
            *("-metrics_host", "0.0.0.0", "-metrics_port", str(self._options.metrics_port), "-rpc_thread_num", "4"),
            *("-default_kv_lease_ttl", LEASE, "-client_ttl", CLIENT_SECONDS),
            *("-eviction_high_watermark_ratio", WATERMARK, "-eviction_ratio", EVICTED),
            *("-enable_ha=false", "-enable_http_metadata_server=false", "-enable_offload=false"),
            *("-enable_metric_reporting=false", "-logtostderr"),
        ]

    async def health(self) -> Health:
        """Return whether it calls itself ready to serve, and takes a connection of a client."""
        try:
            async with self._session() as session, session.get(f"{self._address}/health") as answer:
                status = await answer.json(content_type=None)
            if not status.get("service_ready"):
                return Health.broken(f"mooncake_master says that it is not ready: {status}")
            _, writer = await asyncio.open_connection("127.0.0.1", self._options.port)
            writer.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, it does not serve
            return Health.broken(f"mooncake_master does not answer: {error}")
        return Health()

    async def figures(self) -> Figures:
        """Return what its own metrics say."""
        async with self._session() as session, session.get(f"{self._address}/metrics") as answer:
            text = await answer.text()
        values = _values(text)
        return Figures(
            capacity=values.get("master_total_capacity_bytes"),
            used=values.get("master_allocated_bytes"),
            windows=values.get("master_key_count"),
            evicted=values.get("master_evicted_key_count"),
            refused=values.get("master_put_start_alloc_failures_total"),
            stores=sum(name.startswith("segment_total_capacity_bytes{") for name in values),
        )

    @staticmethod
    def _session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(raise_for_status=True)


def _values(text: str) -> dict[str, int]:
    """Read the metrics that are whole numbers; all that are asked for here are."""
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: int(value) for name, _, value in pairs if value.isdecimal()}

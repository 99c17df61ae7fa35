"""The client of a bootstrap table: registers a rank, and finds the one to fetch pages from."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from epd_workers.reference.transfer.bootstrap import QUERY, Rank
from epd_workers.reference.transfer.errors import TransferError, describe
from epd_workers.reference.transfer.layout import Layout

FIRST_DELAY = 0.05
LONGEST_DELAY = 1.0
CALL_SECONDS = 5.0
MAX_ANSWER_BYTES = 64 << 10


@dataclass(frozen=True)
class Route:
    """Where a prefill rank sends pages from."""

    host: str
    port: int


def base_url(host: str, port: int) -> str:
    """Return the http URL of a host name, an IPv4 or an IPv6 address."""
    bare = host.strip("[]")
    return f"http://[{bare}]:{port}" if ":" in bare else f"http://{bare}:{port}"


async def register(session: aiohttp.ClientSession, base: str, rank: Rank, tries: int = 5) -> None:
    """Put a rank into the table at ``base``.

    Raises:
        TransferError: The table refused it, or could not be reached in ``tries`` tries.
    """
    for attempt in range(tries):
        try:
            async with session.put(f"{base}/route", json=rank.state(), timeout=_call_timeout()) as answer:
                if answer.status == 200:
                    return
                raise TransferError(f"the bootstrap table at {base} refused this rank: {await answer.text()}")
        except (aiohttp.ClientError, TimeoutError) as error:
            if attempt == tries - 1:
                raise TransferError(f"the bootstrap table at {base} cannot be reached: {error}") from error
        await asyncio.sleep(min(FIRST_DELAY * 2**attempt, LONGEST_DELAY))


async def find(session: aiohttp.ClientSession, base: str, layout: Layout, seconds: float) -> Route:
    """Ask the table at ``base`` for its rank and check that its pages fit ``layout``.

    Nothing is kept between calls: a prefill that restarts at the same address is found again at once.

    Raises:
        TransferError: The pages do not fit, or no complete table answered within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    delay = FIRST_DELAY
    while True:
        try:
            shape = await _get(session, base, -1)
            break
        except TransferError:
            if time.monotonic() + delay > deadline:
                raise
        await asyncio.sleep(delay)
        delay = min(2 * delay, LONGEST_DELAY)
    _check(shape, base, layout)
    rank = await _get(session, base, 0)
    host, port = rank.get("rank_ip"), rank.get("rank_port")
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 65536:
        raise TransferError(f"the bootstrap table at {base} answered without a usable rank_ip and rank_port")
    return Route(host, port)


def _check(shape: dict[str, Any], base: str, layout: Layout) -> None:
    sizes = {name: shape.get(name, 1) for name in ("dp_size", "attn_cp_size", "attn_tp_size", "pp_size")}
    split = [f"{name} is {size!r}, this server takes 1" for name, size in sizes.items() if size != 1]
    try:
        faults = split + layout.differences(Layout.parse(shape))
    except ValueError as error:
        raise TransferError(f"the bootstrap table at {base}: {error}", retryable=False) from error
    if faults:
        raise TransferError(
            f"the prefill server of {base} does not match this decode server: {'; '.join(faults)}. "
            "Run both with the same version, checkpoint, page size, cache format and layout key",
            retryable=False,
        )


async def _get(session: aiohttp.ClientSession, base: str, rank: int) -> dict[str, Any]:
    try:
        async with session.get(
            f"{base}/route", params={name: str(rank) for name in QUERY}, timeout=_call_timeout()
        ) as answer:
            body = await answer.content.read(MAX_ANSWER_BYTES)
            if answer.status != 200:
                raise TransferError(f"the bootstrap table at {base} answered {answer.status}: {body[:200]!r}")
            value = json.loads(body)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise TransferError(f"the bootstrap table at {base} cannot be asked: {describe(error)}") from error
    if not isinstance(value, dict):
        raise TransferError(f"the bootstrap table at {base} did not answer with a JSON object")
    return value


def _call_timeout() -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=CALL_SECONDS)

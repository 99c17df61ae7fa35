"""The program itself: start, kill, drain."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.support.polling import eventually
from tests.support.ports import HOST

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.reference.serving import Fleet, Program, Starting


async def test_sigterm_drains_and_exits_0(program: Starting) -> None:
    server = await program("aggregated", "--drain-timeout", "60")
    running = asyncio.create_task(server.post(max_tokens=100))
    await eventually(server.busy, 40, every=0.1)
    server.process.send_signal(signal.SIGTERM)

    async def draining() -> bool:
        return not await server.ready()

    await eventually(draining, 40, every=0.1)
    assert (await server.post())[0] == 503
    assert (await running)[0] == 200
    assert await asyncio.wait_for(server.process.wait(), 20) == 0


@pytest.mark.nightly
async def test_a_second_sigterm_ends_the_draining(program: Starting) -> None:
    server = await program("aggregated", "--drain-timeout", "600")
    running = asyncio.create_task(server.post(max_tokens=8000))
    await eventually(server.busy, 40, every=0.1)
    for _ in range(2):
        server.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
    assert await asyncio.wait_for(server.process.wait(), 20) == 0
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.nightly
async def test_killed_processes_leave_nothing_behind_in_their_peers(program: Starting, fleet: Fleet) -> None:
    wide = ("--context-length", "8192", "--handshake-timeout", "3")
    prefill, decode = await asyncio.gather(program("prefill", *wide), program("decode", *wide))
    survivor_prefill, survivor_decode = await asyncio.gather(program("prefill", *wide), program("decode", *wide))

    def meeting(server: Program) -> dict[str, object]:
        room = fleet.rng.getrandbits(62)
        return {"bootstrap_host": HOST, "bootstrap_port": server.bootstrap, "bootstrap_room": room}

    async def race(first: Program, second: Program, victim: Program, after: float) -> list[object]:
        fields = meeting(first) | {"messages": [{"role": "user", "content": "x" * 6000}], "max_tokens": 500}
        tasks = [asyncio.create_task(server.post(**fields)) for server in (first, second)]
        await asyncio.sleep(after)
        victim.process.kill()
        return list(await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30))

    results = await race(prefill, survivor_decode, prefill, 0.5)
    assert isinstance(results[0], aiohttp.ClientError)
    assert isinstance(results[1], tuple)
    assert results[1][0] in {200, 500}
    results = await race(survivor_prefill, decode, decode, 0.5)
    assert isinstance(results[1], aiohttp.ClientError)

    async def idle() -> bool:
        return not (await survivor_prefill.busy() or await survivor_decode.busy())

    await eventually(idle, 20, every=0.1)
    fields = meeting(survivor_prefill) | {"max_tokens": 5}
    answers = await asyncio.gather(*(server.post(**fields) for server in (survivor_prefill, survivor_decode)))
    assert [status for status, _ in answers] == [200, 200]


@pytest.mark.nightly
async def test_a_taken_port_ends_the_program_with_a_plain_message(program: Starting, checkpoint: Path) -> None:
    server = await program("aggregated")
    arguments = ["--role", "decode", "--port", str(server.port), "--model-path", str(checkpoint)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "epd_workers.reference.main", *arguments, stderr=asyncio.subprocess.PIPE
    )
    _, error = await process.communicate()
    assert process.returncode == 1
    assert b"cannot start" in error
    assert b"Traceback" not in error

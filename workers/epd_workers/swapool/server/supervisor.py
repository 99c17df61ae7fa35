"""Runs a server, passes signals on to it, and ends as it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING, Final

from aiohttp import web

from epd_workers.swapool.agent import NO_LIBRARY
from epd_workers.swapool.server.status import Status

if TYPE_CHECKING:
    from epd_workers.swapool.server.program import Program

log = logging.getLogger("epd-swapool")
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# What the dynamic loader ends a program with whose libraries are missing.
NOT_LOADED: Final = 127


async def supervise(program: Program, health_port: int) -> int:
    """Run a program to its end.

    Args:
        program: What to run.
        health_port: Where to answer for it.

    Returns:
        Its exit status; 128 + N if it died of signal N.

    Raises:
        OSError: It cannot be started, or the port is taken.
    """
    runner = web.AppRunner(Status(program).application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, None, health_port).start()
        return await _run(program)
    finally:
        await runner.cleanup()


async def _run(program: Program) -> int:
    loop = asyncio.get_running_loop()
    environment = {**program.environment, **os.environ}
    child = await asyncio.create_subprocess_exec(*program.command(), env=environment, pass_fds=program.descriptors)
    for descriptor in program.descriptors:
        os.close(descriptor)

    def end() -> None:
        for number in SIGNALS:
            loop.add_signal_handler(number, lambda: None)
        child.terminate()
        loop.call_later(program.grace, kill)

    def kill() -> None:
        if child.returncode is None:
            log.error("%s has not ended within %g s: killed", program.name, program.grace)
            child.kill()

    for number in SIGNALS:
        loop.add_signal_handler(number, end)
    status = await child.wait()
    if status == NOT_LOADED:
        log.error("%s", NO_LIBRARY.format(error="see above"))
    log.info("%s ended with status %d", program.name, status)
    return status if status >= 0 else 128 - status

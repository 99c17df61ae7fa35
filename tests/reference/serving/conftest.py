from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING

import aiohttp
import pytest
import torch

from tests.support.polling import eventually
from tests.support.ports import free_ports
from tests.support.reference import checkpoints
from tests.support.reference.serving import Fleet, Program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.reference.serving import Starting

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
async def fleet(checkpoint: Path) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as exits:
        session = await exits.enter_async_context(aiohttp.ClientSession())
        yield Fleet(session, exits, checkpoint)


@pytest.fixture
async def program(fleet: Fleet) -> AsyncIterator[Starting]:
    started: list[Program] = []

    async def start(role: str, *flags: str) -> Program:
        port, bootstrap, encoders = free_ports(3)
        arguments = ["--role", role, "--port", str(port), "--bootstrap-port", str(bootstrap), *flags]
        arguments += ["--encoder-bootstrap-port", str(encoders), "--model-path", str(fleet.checkpoint)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "epd_workers.reference.main", *arguments, env=os.environ | {"POD_NAME": role}
        )
        made = Program(process, port, bootstrap, fleet.session)
        started.append(made)
        await eventually(made.ready, 100, every=0.1)
        return made

    yield start
    for made in started:
        with contextlib.suppress(ProcessLookupError):
            made.process.kill()
        await made.process.wait()

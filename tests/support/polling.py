"""Waiting for what sets no event: other processes, other threads, servers."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def until(
    condition: Callable[[], object],
    seconds: float = 10.0,
    *,
    every: float = 0.02,
    why: Callable[[], str] | None = None,
) -> None:
    """Wait until a condition holds; `why` adds to the failure what a reader of it needs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, _message(seconds, why)
        time.sleep(every)


async def eventually(
    condition: Callable[[], object],
    seconds: float = 10.0,
    *,
    every: float = 0.02,
    why: Callable[[], str] | None = None,
) -> None:
    """Let others run until a condition holds, which may be asynchronous; `seconds` bounds one that hangs, too."""
    try:
        async with asyncio.timeout(seconds):
            while not await _value(condition):  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(every)
    except TimeoutError as error:
        raise AssertionError(_message(seconds, why)) from error


async def _value(condition: Callable[[], object]) -> object:
    value = condition()
    return await value if inspect.isawaitable(value) else value


def _message(seconds: float, why: Callable[[], str] | None) -> str:
    return f"not reached in {seconds:g} s" + (f": {why()}" if why is not None else "")

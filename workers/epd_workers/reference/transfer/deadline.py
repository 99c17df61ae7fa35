"""Waiting in bounded time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

Result = TypeVar("Result")


async def within(seconds: float, work: Awaitable[Result]) -> Result:
    """Await ``work`` for at most ``seconds``.

    ``asyncio.wait_for`` will not do before Python 3.12: a cancellation that meets a finished result is lost in it, and
    a request whose client has left would then run on to its end.

    Raises:
        TimeoutError: The time is up; the work was cancelled.
    """
    async with asyncio.timeout(seconds):
        return await work

from __future__ import annotations

import asyncio

import pytest

from epd_workers.reference.transfer.deadline import within


async def test_a_result_in_time() -> None:
    assert await within(1, asyncio.sleep(0, "done")) == "done"


async def test_the_time_is_up() -> None:
    with pytest.raises(TimeoutError):
        await within(0.01, asyncio.sleep(30))


async def test_a_cancellation_that_meets_a_result_is_not_lost() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(within(30, future))
    await asyncio.sleep(0)
    future.set_result(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

"""Writes the deltas of all jobs of a request as one answer: a JSON document or a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

from epd_workers.reference.serving.errors import translate
from epd_workers.reference.serving.formats import Choice
from epd_workers.reference.serving.text import deltas
from epd_workers.reference.transfer.deadline import within

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from epd_workers.reference.serving.formats import Format
    from epd_workers.reference.serving.record import Record
    from epd_workers.reference.serving.runner import Assignment, Runner
    from epd_workers.reference.serving.text import Delta

SLOW_CLIENT_SECONDS = 60.0
DONE = b"data: [DONE]\n\n"
EVENT_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class ClientGoneError(Exception):
    """Nobody reads the answer any more."""


async def merged(runner: Runner, assignments: Sequence[Assignment]) -> AsyncGenerator[Delta]:
    """Run all jobs side by side; the first failure ends them all. Must be closed, which stops the jobs."""
    queue: asyncio.Queue[Delta | Exception | None] = asyncio.Queue(maxsize=len(assignments))

    async def drive(assignment: Assignment) -> None:
        try:
            async with contextlib.aclosing(deltas(runner, assignment)) as steps:
                async for delta in steps:
                    await queue.put(delta)
        except Exception as error:  # noqa: BLE001 - raised again where the answer is written
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.create_task(drive(assignment)) for assignment in assignments]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def document(
    source: AsyncIterator[Delta], count: int, form: Format, record: Record, headers: dict[str, str]
) -> web.Response:
    """Answer with one JSON document."""
    choices = [Choice(index) for index in range(count)]
    async for delta in source:
        choices[delta.index].add(delta)
    return web.json_response(form.full(choices, record), headers=headers)


async def events(
    request: web.Request, source: AsyncIterator[Delta], count: int, form: Format, headers: dict[str, str]
) -> tuple[web.StreamResponse, Exception | None]:
    """Answer with server-sent events; also return what ended the stream early, which the client got as an event.

    The head is sent with the first token: until then a failure still has a status of its own.
    """
    choices = [Choice(index) for index in range(count)]
    delta: Delta | None = await anext(source)
    response = web.StreamResponse(headers={**EVENT_HEADERS, **headers})
    await response.prepare(request)
    failure: Exception | None = None
    try:
        while delta is not None:
            choice = choices[delta.index]
            choice.add(delta)
            for event in form.chunks(delta, choice):
                await _write(response, event)
            delta = await anext(source, None)
        for event in form.closing(choices):
            await _write(response, event)
        await _send(response, DONE)
    except ClientGoneError as error:
        failure = error
        if request.transport is not None:
            request.transport.abort()
    except Exception as error:  # noqa: BLE001 - the head is gone, so the failure travels as an event
        failure = error
        with contextlib.suppress(ClientGoneError):
            await _write(response, translate(error).body())
            await _send(response, DONE)
    return response, failure


async def _write(response: web.StreamResponse, event: Any) -> None:
    await _send(response, b"data: " + json.dumps(event).encode() + b"\n\n")


async def _send(response: web.StreamResponse, data: bytes) -> None:
    # A client that stops reading must not hold a place for ever.
    try:
        await within(SLOW_CLIENT_SECONDS, response.write(data))
    except (ConnectionError, TimeoutError) as error:
        raise ClientGoneError("the client went away or stopped reading") from error

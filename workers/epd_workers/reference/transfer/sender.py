"""The prefill's page server: decode servers connect, name their room and are sent its pieces."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epd_workers.reference.transfer import frame as wire
from epd_workers.reference.transfer.deadline import within
from epd_workers.reference.transfer.errors import DuplicateRoomError, PeerFailedError, TransferError, describe
from epd_workers.reference.transfer.frame import Frame, FrameError, FrameKind, FrameLimits
from epd_workers.reference.transfer.layout import Layout
from epd_workers.reference.transfer.room import Room

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from epd_workers.reference.transfer.timeouts import Timeouts

log = logging.getLogger(__name__)

PEER_LIMITS = FrameLimits(meta=4096, body=0)
MAX_CONNECTIONS = 1024
MAX_REMEMBERED_FAILURES = 1024
REMEMBER_FAILURE_SECONDS = 60.0
LOST = (FrameError, EOFError, OSError, TimeoutError)


@dataclass(frozen=True)
class _Hello:
    room: int
    layout: Layout
    peer: str


Explain = Callable[[BaseException], PeerFailedError]
"""What a decode server learns of a failure of its other half."""


def _plain(error: BaseException) -> PeerFailedError:
    return PeerFailedError(str(error) or "the request was aborted")


class PageServer:
    """Serves the pages of all rooms of one prefill server on one TCP port."""

    def __init__(self, layout: Layout, timeouts: Timeouts, explain: Explain = _plain) -> None:
        self._layout = layout
        self._timeouts = timeouts
        self._explain = explain
        self._rooms: dict[int, Room] = {}
        self._early: dict[int, asyncio.Future[Room]] = {}
        self._failures: OrderedDict[int, tuple[float, PeerFailedError]] = OrderedDict()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port, chosen by the system when ``port`` is 0."""
        self._server = await asyncio.start_server(self._connect, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    @property
    def waiting_peers(self) -> int:
        """Decode servers whose request has not come yet."""
        return len(self._early)

    @property
    def connections(self) -> int:
        """Open connections of decode servers."""
        return len(self._connections)

    @contextlib.asynccontextmanager
    async def open(self, number: int) -> AsyncIterator[Room]:
        """Hold a room for one request; a failure inside is reported to the peer.

        Raises:
            DuplicateRoomError: The room is in use.
        """
        if number in self._rooms:
            raise DuplicateRoomError(number)
        room = Room(number)
        self._rooms[number] = room
        self._failures.pop(number, None)
        early = self._early.pop(number, None)
        if early is not None:
            early.set_result(room)
        try:
            yield room
        except BaseException as error:
            failure = self._explain(error)
            room.post_failure(failure)
            if not room.attached:
                self._remember(number, failure)
            raise
        finally:
            del self._rooms[number]

    def refuse(self, number: int, error: Exception) -> None:
        """Tell the decode server of a room, waiting or to come, that its request was not taken on."""
        if number in self._rooms:
            return
        failure = self._explain(error)
        self._remember(number, failure)
        early = self._early.pop(number, None)
        if early is not None:
            early.set_exception(failure)

    def _remember(self, number: int, failure: PeerFailedError) -> None:
        # A decode that comes later learns at once what happened instead of waiting for its deadline.
        self._failures[number] = (time.monotonic() + REMEMBER_FAILURE_SECONDS, failure)
        while len(self._failures) > MAX_REMEMBERED_FAILURES:
            self._failures.popitem(last=False)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._connections) >= MAX_CONNECTIONS:
                return
            self._connections.add(task)
            await self._serve(reader, writer)
        except LOST as error:
            log.info("transfer connection closed: %s", describe(error))
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = _hello(await within(self._timeouts.hello, wire.read(reader, PEER_LIMITS)))
        answer = asyncio.ensure_future(wire.read(reader, PEER_LIMITS))
        try:
            room = await self._meet(hello, answer)
            await self._send_room(room, answer, writer)
        except TransferError as error:
            failure = error if isinstance(error, PeerFailedError) else _plain(error)
            await self._write(writer, Frame(FrameKind.FAILED, {**failure.meta(), "room": hello.room}))
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    async def _meet(self, hello: _Hello, answer: asyncio.Future[Frame]) -> Room:
        differences = self._layout.differences(hello.layout)
        if differences:
            raise TransferError(f"the caches of this prefill server do not fit: {'; '.join(differences)}")
        expiry, failure = self._failures.get(hello.room, (0.0, None))
        if failure is not None and time.monotonic() < expiry:
            raise failure
        room = self._rooms.get(hello.room)
        if room is None:
            room = await self._await_room(hello.room, answer)
        if room.attached:
            raise DuplicateRoomError(hello.room)
        room.attach(hello.peer)
        return room

    async def _await_room(self, number: int, answer: asyncio.Future[Frame]) -> Room:
        if number in self._early:
            raise DuplicateRoomError(number)
        early: asyncio.Future[Room] = asyncio.get_running_loop().create_future()
        self._early[number] = early
        try:
            seconds = self._timeouts.handshake
            first: set[asyncio.Future[Any]] = {early, answer}
            await asyncio.wait(first, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if early.done():
                return early.result()
            if answer.done():
                answer.result()
                raise FrameError("the peer spoke before its room was accepted")
            raise TransferError(f"the prefill server got no request for bootstrap_room {number} within {seconds:g} s")
        finally:
            if self._early.get(number) is early:
                del self._early[number]

    async def _send_room(self, room: Room, answer: asyncio.Future[Frame], writer: asyncio.StreamWriter) -> None:
        pump = asyncio.ensure_future(self._pump(room, writer))
        try:
            first: set[asyncio.Future[Any]] = {pump, answer}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not pump.done():
                answer.result()
                raise FrameError("the decode server confirmed a transfer that had not ended")
            if pump.result():
                confirmed = await within(self._timeouts.silence, answer)
                _check_received(confirmed, room.number)
                room.settle(None)
            else:
                room.settle(TransferError("the transfer was given up"))
        except LOST as error:
            room.settle(TransferError(f"the decode server {room.peer} was lost during the transfer"))
            raise EOFError(f"room {room.number}: {describe(error)}") from error
        finally:
            room.settle(TransferError("this prefill server is closing its transfers"))
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _pump(self, room: Room, writer: asyncio.StreamWriter) -> bool:
        """Send frames up to the handover (True) or the failure (False) that ends them."""
        await self._write(writer, Frame(FrameKind.ACCEPT, {"room": room.number, **self._layout.state()}))
        while True:
            frame = await room.next_frame(self._timeouts.heartbeat) or Frame(FrameKind.ALIVE)
            await self._write(writer, frame)
            if frame.kind in {FrameKind.HANDOVER, FrameKind.FAILED}:
                return frame.kind is FrameKind.HANDOVER

    async def _write(self, writer: asyncio.StreamWriter, frame: Frame) -> None:
        writer.write(wire.pack(frame))
        await within(self._timeouts.silence, writer.drain())


def _hello(frame: Frame) -> _Hello:
    room, peer = frame.meta.get("room"), frame.meta.get("peer", "")
    if frame.kind is not FrameKind.HELLO or not isinstance(room, int) or not isinstance(peer, str):
        raise FrameError("the first frame of a connection must be HELLO with a room")
    try:
        return _Hello(room, Layout.parse(frame.meta), peer[:256])
    except ValueError as error:
        raise FrameError(str(error)) from error


def _check_received(frame: Frame, room: int) -> None:
    if frame.kind is not FrameKind.RECEIVED or frame.meta.get("room") != room:
        raise FrameError(f"expected the confirmation of room {room}")

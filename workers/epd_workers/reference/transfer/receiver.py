"""The decode's half of one transfer: connect to the prefill, name the room, take its pieces and the handover."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

from epd_workers.reference.engine.job import Piece, PieceKind
from epd_workers.reference.transfer import frame as wire
from epd_workers.reference.transfer.deadline import within
from epd_workers.reference.transfer.errors import PeerFailedError, TransferError
from epd_workers.reference.transfer.frame import Frame, FrameError, FrameKind, FrameLimits
from epd_workers.reference.transfer.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_workers.reference.transfer.timeouts import Timeouts

FIXED_META_BYTES = 1 << 20
KINDS: Final[tuple[PieceKind, ...]] = get_args(PieceKind)


@dataclass(frozen=True)
class Received:
    """Everything that a prefill hands over for one request.

    Attributes:
        pieces: The prompt's pages, its last window pages and its state, as they came, none twice.
        meta: The handover's JSON object.
        wait_seconds: From the connection to the prefill's acceptance of the room.
        transfer_seconds: From the first piece to the handover: the computing of later ones overlaps it.
    """

    pieces: list[Piece]
    meta: Mapping[str, Any]
    wait_seconds: float
    transfer_seconds: float

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(len(piece.data) for piece in self.pieces)


@dataclass(frozen=True)
class Receiver:
    """Fetches the pieces of rooms for one decode server.

    Attributes:
        layout: The shape of this server's pieces.
        max_pages: The most pages that one request may have here.
        name: This server's name, which the prefill records.
        timeouts: Bounds of the waits.
    """

    layout: Layout
    max_pages: int
    name: str
    timeouts: Timeouts

    async def receive(self, host: str, port: int, room: int) -> Received:
        """Fetch one room from the prefill rank at ``host:port``.

        Raises:
            TransferError: The layouts differ, the prefill failed or refused the room, or it was lost.
        """
        address = f"{host}:{port}"
        try:
            reader, writer = await within(self.timeouts.handshake, asyncio.open_connection(host, port))
        except (OSError, TimeoutError) as error:
            raise TransferError(f"the prefill server's page port {address} cannot be reached: {error}") from error
        try:
            return await self._converse(reader, writer, room)
        except FrameError as error:
            raise TransferError(f"the prefill server {address} broke the transfer protocol: {error}") from error
        except (EOFError, OSError, TimeoutError) as error:
            raise TransferError(f"the prefill server {address} was lost during the transfer") from error
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, room: int) -> Received:
        started = time.monotonic()
        writer.write(wire.pack(Frame(FrameKind.HELLO, {"room": room, "peer": self.name, **self.layout.state()})))
        await writer.drain()
        # The prefill's own deadline comes first and explains itself; this one catches a prefill that hangs.
        accepted = await self._next(reader, self.timeouts.handshake + self.timeouts.heartbeat, room)
        self._check_accept(accepted, room)
        waited = time.monotonic() - started
        pieces: dict[tuple[PieceKind, int], Piece] = {}
        first = 0.0
        while True:
            frame = await self._next(reader, self.timeouts.silence, room)
            first = first or time.monotonic()
            if frame.kind is FrameKind.PIECE:
                self._add_piece(pieces, frame)
            elif frame.kind is FrameKind.HANDOVER:
                _check_handover(frame, room, len(pieces))
                break
            elif frame.kind is not FrameKind.ALIVE:
                raise FrameError(f"unexpected {frame.kind.name} frame")
        writer.write(wire.pack(Frame(FrameKind.RECEIVED, {"room": room})))
        await within(self.timeouts.silence, writer.drain())
        return Received(list(pieces.values()), frame.meta, waited, time.monotonic() - first)

    async def _next(self, reader: asyncio.StreamReader, seconds: float, room: int) -> Frame:
        # The largest meta is the handover's: it has the prompt's token ids, a few digits each.
        meta = FIXED_META_BYTES + 8 * self.max_pages * self.layout.page_size
        limits = FrameLimits(meta=meta, body=self.layout.largest)
        frame = await within(seconds, wire.read(reader, limits))
        if frame.kind is FrameKind.FAILED:
            raise PeerFailedError.parse(frame.meta, room)
        return frame

    def _check_accept(self, frame: Frame, room: int) -> None:
        if frame.kind is not FrameKind.ACCEPT or frame.meta.get("room") != room:
            raise FrameError(f"expected the acceptance of room {room}")
        try:
            differences = self.layout.differences(Layout.parse(frame.meta))
        except ValueError as error:
            raise FrameError(str(error)) from error
        if differences:
            raise TransferError(f"the prefill server's caches do not fit: {'; '.join(differences)}", retryable=False)

    def _add_piece(self, pieces: dict[tuple[PieceKind, int], Piece], frame: Frame) -> None:
        name, index = frame.meta.get("piece"), frame.meta.get("index")
        kind = next((known for known in KINDS if known == name), None)
        if kind is None or type(index) is not int or index < 0:
            raise FrameError(f"a piece is named {name!r} {index!r}: must be one of {', '.join(KINDS)} and a place")
        if (kind, index) in pieces:
            raise FrameError(f"{kind} {index} came twice")
        if index >= (1 if kind == "state" else self.max_pages):
            raise TransferError(f"the prompt needs {kind} {index}: this server takes {self.max_pages} pages at most")
        expected = self.layout.size(kind)
        if len(frame.body) != expected:
            raise FrameError(f"{kind} {index} has {len(frame.body)} bytes: this server's have {expected}")
        pieces[kind, index] = Piece(kind, index, frame.body)


def _check_handover(frame: Frame, room: int, pieces: int) -> None:
    if frame.meta.get("room") != room:
        raise TransferError(f"the handover is of room {frame.meta.get('room')!r}, expected {room}")
    if frame.meta.get("pieces") != pieces:
        raise FrameError(f"the handover counts {frame.meta.get('pieces')!r} pieces, {pieces} came")

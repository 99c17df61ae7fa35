"""The prefill's half of one transfer: a mailbox between the request that computes and the connection that sends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from epd_workers.reference.transfer.deadline import within
from epd_workers.reference.transfer.errors import PeerFailedError, TransferError
from epd_workers.reference.transfer.frame import Frame, FrameKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from epd_workers.reference.engine.job import Piece

Result = TypeVar("Result")


class Room:
    """One request's room on a prefill server.

    The request waits for its peer, posts pieces as the engine fills them and hands over; the connection takes frames
    from the mailbox and reports how it ended. All methods belong to the event loop.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.peer = ""
        self.sent_bytes = 0
        self._posted = 0
        self._loop = asyncio.get_running_loop()
        self._frames: asyncio.Queue[Frame] = asyncio.Queue()
        self._attached: asyncio.Future[None] = self._loop.create_future()
        self._settled: asyncio.Future[None] = self._loop.create_future()
        self._settled.add_done_callback(_retrieve)

    @property
    def attached(self) -> bool:
        """Whether a decode server is connected, or was."""
        return self._attached.done()

    def attach(self, peer: str) -> None:
        """Join the decode server named ``peer`` to this room."""
        self.peer = peer
        self._attached.set_result(None)

    def settle(self, failure: TransferError | None) -> None:
        """Record how the connection ended: None when the peer confirmed that it has everything."""
        if self._settled.done():
            return
        if failure is None:
            self._settled.set_result(None)
        else:
            self._settled.set_exception(failure)

    async def next_frame(self, seconds: float) -> Frame | None:
        """Return the next frame to send, or None when none came within ``seconds``."""
        try:
            return await within(seconds, self._frames.get())
        except TimeoutError:
            return None

    def post_piece(self, piece: Piece) -> None:
        """Queue a piece for the peer."""
        self.sent_bytes += len(piece.data)
        self._posted += 1
        self._post(Frame(FrameKind.PIECE, {"piece": piece.kind, "index": piece.index}, piece.data))

    def post_failure(self, failure: PeerFailedError) -> None:
        """Tell the peer that nothing more will come, and why."""
        self._post(Frame(FrameKind.FAILED, {**failure.meta(), "room": self.number}))

    async def connected(self, seconds: float) -> None:
        """Wait until a decode server joins the room.

        Raises:
            TransferError: None came in time.
        """
        try:
            await within(seconds, asyncio.shield(self._attached))
        except TimeoutError as error:
            raise TransferError(
                f"no decode server asked for bootstrap_room {self.number} within {seconds:.3g} s"
            ) from error

    async def guard(self, work: Awaitable[Result]) -> Result:
        """Await ``work``, cancelled as soon as the peer is lost.

        Raises:
            TransferError: The peer was lost.
        """
        task = asyncio.ensure_future(work)
        first: set[asyncio.Future[Any]] = {task, self._settled}
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._settled.done():
                self._settled.result()
                raise TransferError("the decode server confirmed pieces that were never handed over")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def hand_over(self, meta: Mapping[str, Any]) -> None:
        """Send the handover and wait until the peer confirms that it has all pieces.

        Raises:
            TransferError: The peer was lost.
        """
        self._post(Frame(FrameKind.HANDOVER, {**meta, "room": self.number, "pieces": self._posted}))
        await asyncio.shield(self._settled)

    def _post(self, frame: Frame) -> None:
        # Through the loop even from the loop: frames then leave in the order in which any thread posted them.
        self._loop.call_soon_threadsafe(self._frames.put_nowait, frame)


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()

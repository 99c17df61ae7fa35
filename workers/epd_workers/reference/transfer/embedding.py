"""Image embeddings on their way from an encoder to the prefill that asked for them, over ZMQ PUSH and PULL.

As in SGLang's ``zmq_to_tokenizer``, the prefill opens one PULL socket per request and names its port in ``/encode``.
The message differs on purpose: frame 0 is a JSON header, not a pickle, and frame 1 the raw tensor, so a message can
say something wrong but can not do anything. ``req_id`` is drawn at random per part and try, hence not to be guessed.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeGuard

import numpy as np
import zmq
import zmq.asyncio

from epd_workers.reference.transfer.deadline import within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSION = 1
DTYPE = "float32"
MAX_HEADER_BYTES = 64 << 10
MAX_MESSAGE_BYTES = 512 << 20
LINGER_MS = 5000


class EmbeddingError(Exception):
    """The message is not an embedding that this side admits."""


@dataclass(frozen=True)
class Embedding:
    """The embeddings of one part of a request's images.

    Attributes:
        req_id: Names the part and the try.
        num_parts: Parts that the request's images were split into.
        part_idx: This part.
        tokens: Rows of each image, in the order of the part's images.
        rows: [sum(tokens), hidden] float32.
        sender: The encoder's name, for records.
    """

    req_id: str
    num_parts: int
    part_idx: int
    tokens: tuple[int, ...]
    rows: np.ndarray[Any, np.dtype[np.float32]]
    sender: str = ""

    def pack(self) -> list[bytes]:
        """Return the two frames of the message."""
        header = {
            "version": VERSION,
            "req_id": self.req_id,
            "num_parts": self.num_parts,
            "part_idx": self.part_idx,
            "modality": "IMAGE",
            "dtype": DTYPE,
            "shape": list(self.rows.shape),
            "tokens": list(self.tokens),
            "sender": self.sender,
        }
        return [json.dumps(header).encode(), np.ascontiguousarray(self.rows, dtype="<f4").tobytes()]

    @classmethod
    def unpack(cls, frames: Sequence[bytes], hidden: int) -> Self:
        """Read a message whose rows must be ``hidden`` wide.

        Raises:
            EmbeddingError: Says what does not fit.
        """
        if len(frames) != 2 or len(frames[0]) > MAX_HEADER_BYTES:
            raise EmbeddingError("a message must have a short header frame and a tensor frame")
        try:
            header = json.loads(frames[0])
        except (ValueError, RecursionError) as error:
            raise EmbeddingError("the header frame is not JSON") from error
        if not isinstance(header, dict) or header.get("version") != VERSION or header.get("dtype") != DTYPE:
            raise EmbeddingError(f"the header must be an object of version {VERSION} and dtype {DTYPE}")
        tokens, shape = header.get("tokens"), header.get("shape")
        if not _counts(tokens) or not _counts(shape) or shape != [sum(tokens), hidden]:
            raise EmbeddingError(f"the shape {shape!r} does not fit images of {tokens!r} rows, {hidden} wide")
        if len(frames[1]) != 4 * math.prod(shape):
            raise EmbeddingError(f"the tensor frame has {len(frames[1])} bytes, its shape says {4 * math.prod(shape)}")
        rows = np.frombuffer(frames[1], dtype="<f4").reshape(shape).astype(np.float32)
        if not np.isfinite(rows).all():
            raise EmbeddingError("the tensor has values that are not finite")
        req_id, num_parts, part_idx, sender = _labels(header)
        return cls(req_id, num_parts, part_idx, tuple(tokens), rows, sender)


def _counts(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and 0 < len(value) <= 4096
        and all(type(item) is int and 0 < item <= 1 << 24 for item in value)
    )


def _labels(header: Mapping[str, Any]) -> tuple[str, int, int, str]:
    req_id, num_parts, part_idx = header.get("req_id"), header.get("num_parts"), header.get("part_idx")
    sender = header.get("sender", "")
    if not isinstance(req_id, str) or not isinstance(sender, str):
        raise EmbeddingError("the header must name req_id, and sender by a string")
    if type(num_parts) is not int or type(part_idx) is not int:
        raise EmbeddingError("the header must name num_parts and part_idx")
    return req_id, num_parts, part_idx, sender[:256]


async def push(context: zmq.asyncio.Context, host: str, port: int, embedding: Embedding, seconds: float) -> None:
    """Send an embedding to the prefill that waits at ``host:port``.

    Raises:
        TimeoutError: Nobody listened there in time.
        OSError: The address cannot be used.
    """
    socket = context.socket(zmq.PUSH)
    # Without this, a message would count as sent although no connection was ever made.
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.IPV6, int(":" in host))
    try:
        socket.connect(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        await within(seconds, socket.send_multipart(embedding.pack()))
    finally:
        socket.close(linger=LINGER_MS)


class EmbeddingInbox:
    """One request's PULL socket: hands each part to the waiter for its ``req_id``, ignores everything else."""

    def __init__(self, context: zmq.asyncio.Context, host: str, hidden: int) -> None:
        self._hidden = hidden
        self._waiting: dict[str, asyncio.Future[Embedding]] = {}
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.IPV6, int(":" in host))
        self.port = self._socket.bind_to_random_port(f"tcp://[{host}]" if ":" in host else f"tcp://{host}")
        self._task = asyncio.ensure_future(self._read())

    def expect(self, req_id: str) -> asyncio.Future[Embedding]:
        """Return what will hold the part named ``req_id``."""
        return self._waiting.setdefault(req_id, asyncio.get_running_loop().create_future())

    def forget(self, req_id: str) -> None:
        """Stop waiting for a part."""
        future = self._waiting.pop(req_id, None)
        if future is not None:
            future.cancel()

    async def close(self) -> None:
        """Close the socket and drop whatever still comes."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close(linger=0)
        for future in self._waiting.values():
            future.cancel()

    async def _read(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            try:
                embedding = Embedding.unpack(frames, self._hidden)
            except EmbeddingError:
                continue  # a stranger's message: requests that wait for a part have deadlines of their own
            future = self._waiting.get(embedding.req_id)
            if future is not None and not future.done():
                future.set_result(embedding)

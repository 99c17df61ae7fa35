"""The frame that carries pieces of caches and messages between a prefill and a decode server.

On the wire, big-endian: magic ``EPDF``, version (u8), kind (u8), meta length (u32), body length (u32), CRC-32 (u32) of
everything after the header; then the meta as UTF-8 JSON (an object) and the body as raw bytes. Lengths are judged
before anything is read and nothing but JSON is ever decoded, so bytes of a stranger cost at most one closed connection.
"""

from __future__ import annotations

import enum
import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

MAGIC = b"EPDF"
VERSION = 2
HEADER = struct.Struct("!4sBBIII")


class FrameError(Exception):
    """The peer's bytes are not a frame that this side admits; the connection is of no further use."""


class FrameKind(enum.IntEnum):
    """What a frame says. The order is the order in which they appear on a connection."""

    HELLO = 1
    ACCEPT = 2
    PIECE = 3
    HANDOVER = 4
    RECEIVED = 5
    FAILED = 6
    ALIVE = 7


@dataclass(frozen=True)
class Frame:
    """One message: its kind, its JSON object and its raw bytes."""

    kind: FrameKind
    meta: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class FrameLimits:
    """The largest meta and body, in bytes, that a reader admits."""

    meta: int
    body: int


def pack(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    meta = json.dumps(frame.meta, separators=(",", ":")).encode()
    checksum = zlib.crc32(frame.body, zlib.crc32(meta))
    return HEADER.pack(MAGIC, VERSION, frame.kind, len(meta), len(frame.body), checksum) + meta + frame.body


async def read(reader: asyncio.StreamReader, limits: FrameLimits) -> Frame:
    """Read one frame.

    Raises:
        FrameError: The bytes are not a frame, or one larger than ``limits``, or damaged.
        EOFError: The peer closed the connection.
    """
    kind, meta_bytes, body_bytes, checksum = _header(await reader.readexactly(HEADER.size), limits)
    meta = await reader.readexactly(meta_bytes)
    body = await reader.readexactly(body_bytes)
    if zlib.crc32(body, zlib.crc32(meta)) != checksum:
        raise FrameError("the frame's checksum does not match its bytes")
    return Frame(kind, _object(meta), body)


def _header(data: bytes, limits: FrameLimits) -> tuple[FrameKind, int, int, int]:
    magic, version, kind, meta_bytes, body_bytes, checksum = HEADER.unpack(data)
    if magic != MAGIC:
        raise FrameError("the first bytes are not those of a transfer frame")
    if version != VERSION:
        raise FrameError(f"the peer speaks frame version {version}, this server version {VERSION}")
    if meta_bytes > limits.meta or body_bytes > limits.body:
        raise FrameError(
            f"a frame of {meta_bytes} + {body_bytes} bytes is above the {limits.meta} + {limits.body} allowed here"
        )
    try:
        return FrameKind(kind), meta_bytes, body_bytes, checksum
    except ValueError as error:
        raise FrameError(f"unknown frame kind {kind}") from error


def _object(meta: bytes) -> dict[str, Any]:
    try:
        value = json.loads(meta)
    except (ValueError, RecursionError) as error:
        raise FrameError("the frame's meta is not JSON") from error
    if not isinstance(value, dict):
        raise FrameError("the frame's meta is not a JSON object")
    return value

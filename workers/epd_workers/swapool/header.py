"""The 64 bytes before a window's rows, and the one judgement whether what came back is what was asked for."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from xxhash import xxh3_64

from epd_workers.swapool.key import SCHEMA

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from epd_workers.swapool.key import Key

MAGIC: Final = b"SWAW"
REPLAYED: Final = 1
# magic 4, schema 1, flags 1, layers 2, rows 4, position 4, namespace 16, key 8, created ms 8, ttl ms 4, length 4;
# behind them 8 bytes of XXH3 over these 56 and the rows.
_FACTS: Final = struct.Struct("<4sBBHII16s8sQII")
_CHECKSUM: Final = struct.Struct("<Q")
SIZE: Final = _FACTS.size + _CHECKSUM.size
LONGEST_TTL: Final = (2**32 - 1) / 1000
# Clocks of nodes that are kept in step differ by less; what lies further in the future was not written by one of them.
SKEW: Final = 1.0

Refusal = Literal["expired", "mismatch"]


@dataclass(frozen=True)
class Window:
    """A window that may be adopted.

    Attributes:
        data: Its rows, `key.size` bytes.
        replayed: Whether they came from a bounded replay, and so approximate those of an uninterrupted run.
        age: Seconds since it was put, by this machine's clock; never below zero.
    """

    data: bytes
    replayed: bool
    age: float


def seal(key: Key, data: Buffer, *, ttl: float, created: float, replayed: bool) -> bytes:
    """Return the header of a window.

    Args:
        key: Its name.
        data: Its rows.
        ttl: Seconds it may be used for.
        created: Unix seconds.
        replayed: Whether the rows came from a bounded replay.
    """
    facts = _expected(key, REPLAYED if replayed else 0, round(created * 1000), _milliseconds(ttl))
    return facts + _CHECKSUM.pack(_checksum(facts, data))


def judge(key: Key, head: Buffer, rows: Buffer, now: float) -> Window | Refusal:
    """Return the window if it is the one asked for, whole and young enough.

    The rows are copied first and judged afterwards: whatever still writes into the buffer they arrived in cannot change
    what has been judged.

    Args:
        key: What was asked for.
        head: 64 bytes, or fewer.
        rows: What followed.
        now: Unix seconds.

    Returns:
        `mismatch` for anything but exactly this window, `expired` for one that is too old or from the future.
    """
    header, data = bytes(head), bytes(rows)
    if len(header) != SIZE or len(data) != key.size:
        return "mismatch"
    facts = header[: _FACTS.size]
    _, _, flags, _, _, _, _, _, created, ttl, _ = _FACTS.unpack(facts)
    if flags not in {0, REPLAYED} or facts != _expected(key, flags, created, ttl):
        return "mismatch"
    if header[_FACTS.size :] != _CHECKSUM.pack(_checksum(facts, data)):
        return "mismatch"
    age = now - created / 1000
    if not -SKEW <= age <= ttl / 1000:
        return "expired"
    return Window(data, flags == REPLAYED, max(age, 0.0))


def _expected(key: Key, flags: int, created: int, ttl: int) -> bytes:
    space = key.namespace
    return _FACTS.pack(
        *(MAGIC, SCHEMA, flags, space.layers, key.rows, key.position),
        *(space.digest, key.digest, created, ttl, key.size),
    )


def _milliseconds(ttl: float) -> int:
    return round(min(max(ttl, 0.0), LONGEST_TTL) * 1000)


def _checksum(facts: bytes, data: Buffer) -> int:
    state = xxh3_64(facts)
    state.update(data)
    return state.intdigest()

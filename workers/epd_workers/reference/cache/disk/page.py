"""The bytes of a page's file, and the one judgement whether they are the page that was asked for."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_64

MAGIC: Final = b"EPDG"
SCHEMA: Final = 1
REPLAYED: Final = 1
SPACE_BYTES: Final = 16
# magic 4, schema 1, flags 1, zero 2, length 4, space 16, chain 28; behind them 8 bytes of XXH3 over these 56 and the
# page.
_FACTS: Final = struct.Struct("<4sBBHI16s28s")
_CHECKSUM: Final = struct.Struct("<Q")
HEADER: Final = _FACTS.size + _CHECKSUM.size


@dataclass(frozen=True)
class StoredPage:
    """A page that may be used.

    Attributes:
        data: The global entries and index keys of all owner layers.
        replayed: Whether they were computed behind a bounded replay, and so approximate those of an uninterrupted run.
    """

    data: bytes
    replayed: bool


def seal(space: bytes, chain: bytes, page: StoredPage) -> bytes:
    """Return the header of a page.

    Args:
        space: Digest of what its bytes depend on besides the tokens.
        chain: Digest of all tokens up to the page's end.
        page: The page.
    """
    facts = _expected(space, chain, REPLAYED if page.replayed else 0, len(page.data))
    return facts + _CHECKSUM.pack(_checksum(facts, page.data))


def judge(space: bytes, chain: bytes, size: int, content: bytes) -> StoredPage | None:
    """Return the page in a file's content; None for anything but exactly this page, whole.

    Args:
        space: As for `seal`.
        chain: As for `seal`.
        size: Bytes of a page.
        content: The file.
    """
    header, data = content[:HEADER], content[HEADER:]
    if len(header) != HEADER or len(data) != size:
        return None
    facts, flags = header[: _FACTS.size], header[5]
    if flags not in {0, REPLAYED} or facts != _expected(space, chain, flags, size):
        return None
    if header[_FACTS.size :] != _CHECKSUM.pack(_checksum(facts, data)):
        return None
    return StoredPage(data, flags == REPLAYED)


def _expected(space: bytes, chain: bytes, flags: int, length: int) -> bytes:
    bound = hashlib.blake2b(chain, digest_size=28).digest()
    return _FACTS.pack(MAGIC, SCHEMA, flags, 0, length, space, bound)


def _checksum(facts: bytes, data: bytes) -> int:
    state = xxh3_64(facts)
    state.update(data)
    return state.intdigest()

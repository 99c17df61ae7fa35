"""Digests of a text up to the end of each of its pages: what was read, as keys of windows and pages name it."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def chain(key: Sequence[int], page_size: int, salt: str = "", *, before: bytes = b"") -> list[bytes]:
    """Digest of all tokens up to the end of each full page: equal for equal tokens and salt alone.

    Args:
        key: One integer per token: its id, or for a picture's row a name that follows from the whole picture; negative
            ones need at most 256 bits.
        page_size: Tokens of a page.
        salt: Only requests with the same one share.
        before: Digest up to the first of these tokens, to go on from there; the salt is in it already.

    Returns:
        32 bytes for each page.
    """
    digest = before or hashlib.sha256(salt.encode("utf-8", "surrogatepass")).digest()
    digests = []
    for end in range(page_size, len(key) + 1, page_size):
        digest = hashlib.sha256(digest + _page(key[end - page_size : end])).digest()
        digests.append(digest)
    return digests


def _page(names: Sequence[int]) -> bytes:
    """Bytes that no other page has: 8 for a token's id, or, in a page with a negative name, 33 for each."""
    if min(names) >= 0:
        return b"\0" + struct.pack(f"<{len(names)}Q", *names)
    return b"\1" + b"".join(bytes([name < 0]) + (name if name >= 0 else ~name).to_bytes(32, "little") for name in names)

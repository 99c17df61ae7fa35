"""The names of a prompt's tokens: in the prefix tree, and outside of this process."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from epd_workers.reference.engine.request import Prompt


def prefix_key(prompt: Prompt, image_id: int) -> list[int]:
    """One integer per token: its id, or for an image's row a negative number that follows from the whole image.

    All placeholders have the same id, so two prompts with different pictures would look alike.

    Args:
        prompt: Checked already.
        image_id: The placeholder of an image row.

    Returns:
        As many as there are tokens, or only those before the first placeholder whose picture is not held here.
    """
    key = list(prompt.token_ids)
    for image in prompt.images:
        rows = len(image.embeddings)
        key[image.start : image.start + rows] = [_digest(image.embeddings)] * rows
    return key[: key.index(image_id)] if image_id in key else key


def chain(key: Sequence[int], page_size: int, salt: str = "", *, before: bytes = b"") -> list[bytes]:
    """Digest of all tokens up to the end of each full page: equal for equal tokens, pictures and salt alone.

    Args:
        key: Names of the tokens, as `prefix_key` gives them.
        page_size: Tokens of a page.
        salt: Whom the request may share with.
        before: Digest up to the first of these tokens, to go on from there; the salt is in it already.

    Returns:
        32 bytes for each page.
    """
    digest = before or hashlib.sha256(b"salt\0" + salt.encode()).digest()
    digests = []
    for end in range(page_size, len(key) + 1, page_size):
        page = b"".join(_name(token) for token in key[end - page_size : end])
        digest = hashlib.sha256(digest + page).digest()
        digests.append(digest)
    return digests


def _name(token: int) -> bytes:
    """Bytes of a token's name; a picture's are longer and begin otherwise than those of an id."""
    return b"\0" + token.to_bytes(8, "little") if token >= 0 else b"\1" + (-1 - token).to_bytes(32, "little")


def _digest(rows: Tensor) -> int:
    """All 256 bits, below zero, so that it equals no token id."""
    data = rows.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return -1 - int.from_bytes(hashlib.sha256(data).digest(), "little")

"""The names of a prompt's tokens in the prefix tree."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
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


def _digest(rows: Tensor) -> int:
    """Below zero, so that it equals no token id."""
    data = rows.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return -1 - int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")

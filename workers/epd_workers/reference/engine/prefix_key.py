"""The names of a prompt's tokens: in the prefix tree, and outside of this process."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from epd_workers.reference.engine.request import Picture
from epd_workers.swapool.chain import chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from epd_workers.reference.engine.job import Job
    from epd_workers.reference.engine.request import Prompt


def pictures(prompt: Prompt) -> tuple[Picture, ...]:
    """What distinguishes the prompt's pictures from others."""
    return tuple(Picture(image.start, len(image.embeddings), _digest(image.embeddings)) for image in prompt.images)


def prefix_key(token_ids: Sequence[int], shown: Sequence[Picture], image_id: int) -> list[int]:
    """One integer per token: its id, or for an image's row a negative number that follows from the whole image.

    All placeholders have the same id, so two prompts with different pictures would look alike.

    Args:
        token_ids: Checked already.
        shown: The pictures in it, as far as known.
        image_id: The placeholder of an image row.

    Returns:
        As many as there are tokens, or only those before the first placeholder whose picture is not known.
    """
    key = list(token_ids)
    for picture in shown:
        key[picture.start : picture.start + picture.tokens] = [-1 - int(picture.digest, 16)] * picture.tokens
    return key[: key.index(image_id)] if image_id in key else key


class Names:
    """Names of one request's tokens and pages, as they become known."""

    def __init__(self, job: Job, image_id: int, page_size: int) -> None:
        self.salt = job.prompt.salt
        self._job = job
        self._image_id = image_id
        self._size = page_size
        self._chain: list[bytes] = []

    @cached_property
    def pictures(self) -> tuple[Picture, ...]:
        """The prompt's; decode has them from prefill."""
        return self._job.handover.pictures if self._job.handover else pictures(self._job.prompt)

    @cached_property
    def prompt(self) -> list[int]:
        """Names of the prompt's tokens, up to the first one that is not known."""
        return prefix_key(self._job.prompt.token_ids, self.pictures, self._image_id)

    def key(self, answer: Sequence[int]) -> list[int]:
        """Names of prompt and answer, up to the first one that is not known."""
        known = len(self.prompt) == len(self._job.prompt.token_ids)
        return [*self.prompt, *answer] if known else self.prompt

    def chain(self, answer: Sequence[int] = ()) -> Sequence[bytes]:
        """Digest of every full page of prompt and answer, as far as the names are known."""
        done = len(self._chain)
        before = self._chain[-1] if done else b""
        self._chain += chain(self.key(answer)[done * self._size :], self._size, self.salt, before=before)
        return self._chain


def _digest(rows: Tensor) -> str:
    data = rows.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()

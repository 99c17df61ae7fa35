"""Where the embeddings of a request's images come from: this process, or encode servers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from epd_workers.reference.engine.request import Prompt
from epd_workers.reference.serving.media import MediaLimits, load_image

if TYPE_CHECKING:
    from collections.abc import Sequence

    import aiohttp
    from torch import Tensor

    from epd_workers.reference.engine.engine import Engine
    from epd_workers.reference.model.tokenizer import Tokenizer
    from epd_workers.reference.serving.work import Work
    from epd_workers.reference.transfer.encoders import EncoderPool


@dataclass(frozen=True)
class SeenImage:
    """One image's embeddings [tokens, hidden] float32, who made them, and the seconds until they were here."""

    rows: Tensor
    encoder: str
    seconds: float


class Vision(Protocol):
    """Encodes the images of one request."""

    async def encode(self, rid: str, urls: Sequence[str]) -> list[SeenImage]:
        """Return the embeddings of the images at ``urls``, in order."""


class LocalVision:
    """Fetches and encodes images in this process."""

    def __init__(self, engine: Engine, session: aiohttp.ClientSession, limits: MediaLimits, pod: str) -> None:
        self._engine = engine
        self._session = session
        self._limits = limits
        self._pod = pod

    async def encode(self, rid: str, urls: Sequence[str]) -> list[SeenImage]:  # noqa: ARG002 - nothing to name here
        """See `Vision`."""
        return list(await asyncio.gather(*(self._one(url) for url in urls)))

    async def _one(self, url: str) -> SeenImage:
        started = time.monotonic()
        rows = await self._engine.encode(await load_image(self._session, url, self._limits))
        return SeenImage(rows, self._pod, time.monotonic() - started)


class RemoteVision:
    """Sends images to encode servers; this process never fetches them."""

    def __init__(self, pool: EncoderPool) -> None:
        self._pool = pool

    async def encode(self, rid: str, urls: Sequence[str]) -> list[SeenImage]:
        """See `Vision`."""
        result = await self._pool.encode(rid, urls)
        return [SeenImage(torch.from_numpy(image.rows), image.encoder, image.seconds) for image in result]


@dataclass(frozen=True)
class LoadedPrompt:
    """A prompt with its images' embeddings in place."""

    prompt: Prompt
    images: tuple[SeenImage, ...]


class Prompts:
    """The prompts of one request, each loaded once however many answers want it.

    Attributes:
        tokenizer: The model's.
        salt: Of all of them.
    """

    def __init__(self, work: Work, vision: Vision | None, tokenizer: Tokenizer, rid: str) -> None:
        self._work = work
        self._vision = vision
        self.tokenizer = tokenizer
        self.salt = work.salt
        self._rid = rid
        self._tasks: dict[int, asyncio.Task[LoadedPrompt]] = {}

    def has_images(self, index: int) -> bool:
        """Whether prompt number ``index`` has images."""
        return bool(self._work.prompts[index].images)

    async def get(self, index: int) -> LoadedPrompt:
        """Return prompt number ``index``, encoding its images on the first call."""
        task = self._tasks.get(index)
        if task is None:
            task = self._tasks[index] = asyncio.create_task(self._load(index))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Give up what is still being loaded."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _load(self, index: int) -> LoadedPrompt:
        parts = self._work.prompts[index]
        images: Sequence[SeenImage] = ()
        if parts.images:
            assert self._vision is not None
            images = await self._vision.encode(self._rid, parts.images)
        prompt = Prompt.build(self.tokenizer, parts.parts, [image.rows for image in images], self.salt)
        return LoadedPrompt(prompt, tuple(images))

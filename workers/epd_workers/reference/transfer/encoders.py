"""Spreads a request's images over the known encoders and gathers their embeddings."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import numpy as np

from epd_workers.reference.transfer.deadline import within
from epd_workers.reference.transfer.embedding import Embedding, EmbeddingInbox
from epd_workers.reference.transfer.errors import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    import zmq.asyncio

    from epd_workers.reference.transfer.registry import EncoderRegistry

MAX_TRIES = 3
ARRIVAL_SECONDS = 5.0
MAX_ANSWER_BYTES = 64 << 10
REFUSALS = {400, 413}


class EncodersUnavailableError(Exception):
    """No encoder is known, or all that were tried failed (HTTP 503)."""


class ImageRefusedError(Exception):
    """An encoder says that an image itself is at fault (HTTP 400)."""


@dataclass(frozen=True)
class EncodedImage:
    """One image's embeddings and where they come from.

    Attributes:
        rows: [tokens, hidden] float32.
        encoder: The name that the encoder gave itself, else its URL.
        seconds: From the call to the arrival of the part's embeddings.
    """

    rows: np.ndarray[Any, np.dtype[np.float32]]
    encoder: str
    seconds: float


@dataclass(frozen=True)
class _Part:
    rid: str
    index: int
    count: int
    images: tuple[str, ...]


class EncoderPool:
    """The prefill's client of all encoders.

    Args:
        registry: The encoders.
        session: Shared HTTP session.
        context: Of the sockets.
        bind_host: Where embeddings are awaited.
        advertised_host: The address of that for encoders.
        hidden: Width of an embedding row.
        seconds: Bound of one try of one part.
    """

    def __init__(
        self,
        registry: EncoderRegistry,
        session: aiohttp.ClientSession,
        context: zmq.asyncio.Context,
        *,
        bind_host: str,
        advertised_host: str,
        hidden: int,
        seconds: float,
    ) -> None:
        self._registry = registry
        self._session = session
        self._context = context
        self._bind_host = bind_host
        self._advertised_host = advertised_host
        self._hidden = hidden
        self._seconds = seconds

    async def encode(self, rid: str, images: Sequence[str]) -> list[EncodedImage]:
        """Return the embeddings of ``images`` (URLs), in their order.

        Raises:
            EncodersUnavailableError: No encoder is known, or a part failed on every encoder that was tried.
            ImageRefusedError: An image is at fault.
        """
        encoders = self._registry.healthy()
        if not encoders:
            raise EncodersUnavailableError(
                "no image encoder is registered with this prefill server; try again when an encode pod is ready"
            )
        inbox = EmbeddingInbox(self._context, self._bind_host, self._hidden)
        tasks = [asyncio.ensure_future(self._part(part, encoders, inbox)) for part in split(rid, images, len(encoders))]
        try:
            parts = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await inbox.close()
        return [image for part in parts for image in part]

    async def _part(self, part: _Part, encoders: Sequence[str], inbox: EmbeddingInbox) -> list[EncodedImage]:
        failures: list[str] = []
        # Each part starts at another encoder, so that the parts of one request do not all meet on the first.
        for url in [*encoders[part.index :], *encoders[: part.index]][:MAX_TRIES]:
            req_id = f"{part.rid[:64]}-{part.index}-{uuid.uuid4().hex}"
            started = time.monotonic()
            try:
                embedding = await within(self._seconds, self._call(url, req_id, part, inbox))
            except (aiohttp.ClientError, OSError, TimeoutError, _EncoderError) as error:
                # Three full queues in a row do not mean a dead encoder: its health probe distinguishes the two.
                if not isinstance(error, _BusyError):
                    self._registry.missed(url)
                failures.append(f"{url}: {describe(error)}")
                continue
            finally:
                inbox.forget(req_id)
            self._registry.answered(url)
            return _images(embedding, url, time.monotonic() - started)
        raise EncodersUnavailableError(f"no encoder could encode the images: {'; '.join(failures)}")

    async def _call(self, url: str, req_id: str, part: _Part, inbox: EmbeddingInbox) -> Embedding:
        arrival = inbox.expect(req_id)
        body = {
            "req_id": req_id,
            "mm_items": list(part.images),
            "modality": "IMAGE",
            "num_parts": part.count,
            "part_idx": part.index,
            "prefill_host": self._advertised_host,
            "embedding_port": inbox.port,
            "time_stats_json": None,
        }
        timeout = aiohttp.ClientTimeout(total=self._seconds)
        headers = {"X-Request-ID": part.rid}
        async with self._session.post(f"{url}/encode", json=body, timeout=timeout, headers=headers) as answer:
            text = await answer.content.read(MAX_ANSWER_BYTES)
            if answer.status in REFUSALS:
                raise ImageRefusedError(_message(text))
            if answer.status == 503:
                raise _BusyError(f"status 503: {_message(text)}")
            if answer.status != 200:
                raise _EncoderError(f"status {answer.status}: {_message(text)}")
        embedding = await within(ARRIVAL_SECONDS, arrival)
        if len(embedding.tokens) != len(part.images):
            raise _EncoderError(f"{len(embedding.tokens)} embeddings came for {len(part.images)} images")
        return embedding


class _EncoderError(Exception):
    """This encoder failed; another may do better."""


class _BusyError(_EncoderError):
    """This encoder takes nothing more at the moment."""


def split(rid: str, images: Sequence[str], encoders: int) -> list[_Part]:
    """Split images evenly and in order into at most ``encoders`` parts, none empty."""
    count = min(len(images), encoders)
    bounds = [len(images) * index // count for index in range(count + 1)]
    return [_Part(rid, i, count, tuple(images[bounds[i] : bounds[i + 1]])) for i in range(count)]


def _images(embedding: Embedding, url: str, seconds: float) -> list[EncodedImage]:
    ends = np.cumsum(embedding.tokens)[:-1]
    return [EncodedImage(rows, embedding.sender or url, seconds) for rows in np.split(embedding.rows, ends)]


def _message(body: bytes) -> str:
    try:
        value = json.loads(body)
        return str(value["message"])[:1000]
    except (ValueError, TypeError, KeyError, RecursionError):
        return body[:200].decode("utf-8", "replace")

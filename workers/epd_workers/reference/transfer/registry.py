"""The encoders that a prefill server knows, and the port where they are registered.

Protocol as SGLang's ``EncoderBootstrapServer``: ``POST /register_encoder_url`` and ``DELETE /unregister_encoder_url``
with ``{"url": ...}``, ``GET /list_encoder_urls``, ``GET /health``. Each encoder's ``/health`` is asked on a fixed
interval: after a few misses it gets no images, when it answers again it does, after long silence it is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from epd_workers.reference.transfer.body import read_json

log = logging.getLogger(__name__)

MAX_ENCODERS = 256
MAX_BODY_BYTES = 16 << 10


@dataclass(frozen=True)
class ProbePolicy:
    """When an encoder counts as gone: all times in seconds."""

    interval: float = 10.0
    timeout: float = 2.0
    misses: int = 3
    forget_after: float = 600.0


@dataclass
class _Encoder:
    misses: int = 0
    seen: float = 0.0


class EncoderRegistry:
    """The live list of encoders. Belongs to one event loop."""

    def __init__(self, policy: ProbePolicy) -> None:
        self._policy = policy
        self._encoders: dict[str, _Encoder] = {}

    def add(self, url: str) -> None:
        """Register an encoder, or mark a known one as healthy again.

        Raises:
            ValueError: Not the URL of an http server, or too many encoders.
        """
        url = _clean(url)
        if url not in self._encoders and len(self._encoders) >= MAX_ENCODERS:
            raise ValueError(f"{MAX_ENCODERS} encoders are registered; unregister one first")
        self._encoders[url] = _Encoder(seen=time.monotonic())

    def remove(self, url: str) -> bool:
        """Forget an encoder; False when it was not known."""
        return self._encoders.pop(url.rstrip("/"), None) is not None

    def healthy(self) -> list[str]:
        """Return the encoders that may get images, those without a recent miss first, else in random order."""
        urls = [url for url, encoder in self._encoders.items() if encoder.misses < self._policy.misses]
        random.shuffle(urls)
        return sorted(urls, key=lambda url: self._encoders[url].misses)

    def missed(self, url: str) -> None:
        """Count a failed probe or call."""
        encoder = self._encoders.get(url)
        if encoder is None:
            return
        encoder.misses += 1
        if encoder.misses == self._policy.misses:
            log.warning("encoder %s failed %d times in a row and gets no more images", url, encoder.misses)
        if time.monotonic() - encoder.seen > self._policy.forget_after:
            del self._encoders[url]
            log.warning("encoder %s is forgotten after %g s of silence", url, self._policy.forget_after)

    def answered(self, url: str) -> None:
        """Count a good probe or call."""
        encoder = self._encoders.get(url)
        if encoder is not None:
            encoder.misses, encoder.seen = 0, time.monotonic()

    async def watch(self, session: aiohttp.ClientSession) -> None:
        """Probe all encoders for ever."""
        while True:
            await asyncio.gather(*(self._probe(session, url) for url in list(self._encoders)))
            await asyncio.sleep(self._policy.interval)

    async def _probe(self, session: aiohttp.ClientSession, url: str) -> None:
        try:
            timeout = aiohttp.ClientTimeout(total=self._policy.timeout)
            async with session.get(f"{url}/health", timeout=timeout) as answer:
                healthy = answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            healthy = False
        if healthy:
            self.answered(url)
        else:
            self.missed(url)

    def application(self) -> web.Application:
        """Return the routes of the registration port."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_post("/register_encoder_url", self._register)
        app.router.add_delete("/unregister_encoder_url", self._unregister)
        app.router.add_get("/list_encoder_urls", self._list)
        return app

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _register(self, request: web.Request) -> web.Response:
        try:
            self.add(await _url(request))
        except ValueError as error:
            return web.json_response({"status": "error", "message": str(error)}, status=400)
        return web.json_response({"status": "ok"})

    async def _unregister(self, request: web.Request) -> web.Response:
        try:
            known = self.remove(await _url(request))
        except ValueError as error:
            return web.json_response({"status": "error", "message": str(error)}, status=400)
        # Level-triggered callers repeat themselves: removing what is not there is not a fault.
        return web.json_response({"status": "ok", "known": known})

    async def _list(self, _request: web.Request) -> web.Response:
        return web.json_response({"encoder_urls": sorted(self._encoders), "healthy": sorted(self.healthy())})


async def _url(request: web.Request) -> str:
    body = await read_json(request)
    if not isinstance(body, dict) or not isinstance(body.get("url"), str):
        raise ValueError('the body must be {"url": "http://host:port"}')  # noqa: TRY004 - one error type
    url: str = body["url"]
    return url


def _clean(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.username or parts.path.strip("/") or parts.query:
        raise ValueError(f"url is {url[:200]!r}: must be http://host:port")
    parts.port  # noqa: B018 - raises ValueError when the port is not one
    return url.rstrip("/")

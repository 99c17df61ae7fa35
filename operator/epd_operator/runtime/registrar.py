"""The operator's eye on the data path: what each router's registrar says, fetched often while something moves."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from epd_operator.api.names import LABEL_COMPONENT, ROUTER
from epd_operator.runtime.difference import digest

if TYPE_CHECKING:
    from epd_operator.runtime.cache import Cache
    from epd_operator.runtime.watch_scope import Key

log = logging.getLogger(__name__)

MOVING_SECONDS: Final = 2.0
RESTING_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 2.0
MISSES: Final = 2
"""Failed polls in a row after which a document no longer counts: one lost packet must not flap a condition."""

SIZE_LIMIT: Final = 1 << 20
SCHEMA: Final = 1
VOLATILE: Final = frozenset(
    {"inFlight", "rowsRun", "rowsSkipped", "rowsReplayed", "hits", "misses", "stored", "dropped"}
)
"""Counters that move with every request and decide nothing."""

Fetch = Callable[[str], Any]


@dataclass
class _Router:
    """The last report of one registrar."""

    document: dict[str, Any]
    misses: int = 0


@dataclass
class _Followed:
    """One custom resource that is being polled."""

    task: asyncio.Task[None]
    moving: bool
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    routers: dict[str, _Router] = field(default_factory=dict)


class Poller:
    """Polls the registrars of every followed custom resource.

    Args:
        cache: Knows the router pods.
        enqueue: Called when a resource's documents change.
        fetch: Coroutine function, URL to document; raises OSError, ValueError or aiohttp's errors.
        port: Where registrars answer.
    """

    def __init__(
        self,
        cache: Cache,
        enqueue: Callable[[Key], None],
        fetch: Callable[[str], Any],
        port: int,
    ) -> None:
        self._cache = cache
        self._enqueue = enqueue
        self._fetch = fetch
        self._port = port
        self._followed: dict[Key, _Followed] = {}

    def documents(self, key: Key) -> list[dict[str, Any]]:
        """The last document of each registrar that answers, ordered by pod."""
        followed = self._followed.get(key)
        return [followed.routers[pod].document for pod in sorted(followed.routers)] if followed else []

    def follow(self, key: Key, *, moving: bool) -> None:
        """Poll every `MOVING_SECONDS` or `RESTING_SECONDS` from now on."""
        followed = self._followed.get(key)
        if followed is None:
            task = asyncio.create_task(self._poll(key), name=f"registrars of {key.text}")
            self._followed[key] = _Followed(task, moving)
            return
        if moving and not followed.moving:
            followed.hurry.set()
        followed.moving = moving

    def drop(self, key: Key) -> None:
        """Stop polling and forget."""
        followed = self._followed.pop(key, None)
        if followed is not None:
            followed.task.cancel()

    def close(self) -> None:
        """Stop everything."""
        for key in list(self._followed):
            self.drop(key)

    async def _poll(self, key: Key) -> None:
        while True:
            followed = self._followed[key]
            before = _meaning(self.documents(key))
            await self._look(key, followed)
            if _meaning(self.documents(key)) != before:
                self._enqueue(key)
            followed.hurry.clear()
            try:
                async with asyncio.timeout(MOVING_SECONDS if followed.moving else RESTING_SECONDS):
                    await followed.hurry.wait()
            except TimeoutError:
                continue

    async def _look(self, key: Key, followed: _Followed) -> None:
        pods = {pod["metadata"]["name"]: pod for pod in self._cache.pods(key) if _answers(pod)}
        for name in set(followed.routers) - set(pods):
            del followed.routers[name]
        answers = await asyncio.gather(*(self._ask(name, pod["status"]["podIP"]) for name, pod in pods.items()))
        for name, document in zip(pods, answers, strict=True):
            known = followed.routers.get(name)
            if document is not None:
                followed.routers[name] = _Router(document)
            elif known is not None:
                known.misses += 1
                if known.misses >= MISSES:
                    del followed.routers[name]

    async def _ask(self, pod: str, address: str) -> dict[str, Any] | None:
        host = f"[{address}]" if ":" in address else address
        try:
            document = await self._fetch(f"http://{host}:{self._port}/state")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            log.debug("registrar does not answer", extra={"pod": pod, "error": str(error)})
            return None
        # An address may have passed to another pod since the cache saw it.
        if not isinstance(document, dict) or document.get("schema") != SCHEMA or document.get("pod") != pod:
            log.warning("registrar answers with something else", extra={"pod": pod})
            return None
        return document


async def fetch(session: aiohttp.ClientSession, url: str) -> Any:
    """GET a JSON document of at most `SIZE_LIMIT` bytes within `ANSWER_SECONDS`.

    The session must not be the API server's: that one carries our token.
    """
    async with session.get(url, timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS), allow_redirects=False) as response:
        response.raise_for_status()
        raw = await response.content.read(SIZE_LIMIT + 1)
        while len(raw) <= SIZE_LIMIT and (more := await response.content.read(SIZE_LIMIT)):
            raw += more
        if len(raw) > SIZE_LIMIT:
            raise ValueError(f"more than {SIZE_LIMIT} bytes")
        return json.loads(raw)


def _answers(pod: Mapping[str, Any]) -> bool:
    metadata, status = pod["metadata"], pod.get("status") or {}
    return (
        (metadata.get("labels") or {}).get(LABEL_COMPONENT) == ROUTER
        and status.get("phase") == "Running"
        and bool(status.get("podIP"))
    )


def _meaning(value: Any) -> str:
    return digest(_steady(value))


def _steady(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _steady(item) for name, item in value.items() if name not in VOLATILE}
    return [_steady(item) for item in value] if isinstance(value, list) else value

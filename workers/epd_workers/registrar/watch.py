"""The engine pods, kept current by list and watch.

A watch whose connection died quietly looks like a cluster in which nothing happens. So no watch lives longer than one
resync period: the server is asked to end it, the client gives up shortly after, and each new round starts with a list.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp

from epd_workers.registrar.backoff import Backoff
from epd_workers.registrar.pod import Pod, pod_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from epd_workers.registrar.access import Access

log = logging.getLogger(__name__)

LIST_TIMEOUT = aiohttp.ClientTimeout(total=15, connect=5)
# How much longer than the server the client waits for the end of a watch.
PATIENCE = 5.0


class WatchError(Exception):
    """The API server did not answer, refused, or ended the watch with an error."""


class PodWatch:
    """Follows the pods that a selector names.

    Args:
        session: Shared HTTP session.
        access: How to reach the API server.
        namespace: Where the pods are.
        selector: Label selector.
        engine_port: Tells the engine container of a pod.
        resync: Seconds between lists.
        changed: Called after every change.
        failed: Called after every error.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        access: Access,
        namespace: str,
        selector: str,
        *,
        engine_port: int,
        resync: float,
        changed: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        self._session = session
        self._access = access
        self._url = f"{access.server}/api/v1/namespaces/{namespace}/pods"
        self._selector = selector
        self._engine_port = engine_port
        self._resync = resync
        self._changed = changed
        self._failed = failed
        self._pods: dict[str, Pod] | None = None
        self.contact = 0.0

    @property
    def pods(self) -> list[Pod] | None:
        """The pods as last seen, None before the first list. Stays as it was while the API server is away."""
        return None if self._pods is None else list(self._pods.values())

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        backoff = Backoff(first=0.5, ceiling=10)
        while True:
            try:
                await self._follow(await self._list())
                backoff.succeeded("api")
            except (WatchError, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                self._failed()
                delay = backoff.failed("api")
                log.warning("pods: %s; next attempt in %.1f s", str(error) or repr(error), delay)
                await asyncio.sleep(delay)

    async def _list(self) -> str:
        """Replace what is known; returns the resource version to watch from."""
        params = {"labelSelector": self._selector}
        async with self._request(params, LIST_TIMEOUT) as response:
            body = json.loads(await response.read())
        pods = {obj["metadata"]["uid"]: pod_of(obj, self._engine_port) for obj in body["items"]}
        self._replace({uid: pod for uid, pod in pods.items() if pod is not None})
        return str(body["metadata"]["resourceVersion"])

    async def _follow(self, version: str) -> None:
        """Apply watch events until the server ends the watch, which it is asked to do after one resync period."""
        params = {
            "labelSelector": self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(self._resync))),
        }
        timeout = aiohttp.ClientTimeout(total=self._resync + PATIENCE, connect=5)
        async with self._request(params, timeout) as response:
            async for event in _lines(response):
                if event["type"] == "ERROR":
                    raise WatchError(f"the watch ended: {event['object'].get('message', event['object'])}")
                self._apply(event["type"], event["object"])

    def _request(self, params: dict[str, str], timeout: aiohttp.ClientTimeout) -> _Checked:
        tls: Any = self._access.tls if self._access.tls is not None else True
        return _Checked(
            self._session.get(self._url, params=params, headers=self._access.headers(), ssl=tls, timeout=timeout)
        )

    def _apply(self, kind: str, obj: dict[str, Any]) -> None:
        self.contact = time.time()
        if kind == "BOOKMARK":
            return
        pods = dict(self._pods or {})
        pod = None if kind == "DELETED" else pod_of(obj, self._engine_port)
        if pod is None:
            pods.pop(obj["metadata"]["uid"], None)
        else:
            pods[pod.uid] = pod
        self._replace(pods)

    def _replace(self, pods: dict[str, Pod]) -> None:
        self.contact = time.time()
        if pods != self._pods:
            self._pods = pods
            self._changed()


class _Checked:
    """A response that is known to be 200."""

    def __init__(self, request: Any) -> None:
        self._request = request

    async def __aenter__(self) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self._request.__aenter__()
        if response.status != HTTPStatus.OK:
            text = await response.text()
            await self._request.__aexit__(None, None, None)
            raise WatchError(f"the API server answered {response.status}: {_message(text)}")
        return response

    async def __aexit__(self, *error: object) -> None:
        await self._request.__aexit__(*error)


def _message(text: str) -> str:
    """What a Status object says, or the beginning of what is none."""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """JSON documents, one a line; a pod can be longer than aiohttp's own line limit."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)

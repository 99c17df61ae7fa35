"""The verbs, over HTTP: plain dicts in and out, server-side apply for every object we own."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import aiohttp

from epd_operator.kube.connection import CONNECT_SECONDS, Connection, fenced, ours
from epd_operator.kube.error import Gone, TooManyRequests, Transport, Unauthorized, from_answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from epd_operator.kube.kind import Kind

Object: TypeAlias = dict[str, Any]
Objects: TypeAlias = list[Object]

CHUNK: Final = 500
REQUEST_SECONDS: Final = 30.0
WATCH_SECONDS: Final = 300
SILENCE_SECONDS: Final = 75.0
"""A healthy watch sends a bookmark every minute; longer silence means a dead peer behind a live socket."""

THROTTLE_BUDGET: Final = 30.0
"""Seconds that one call may spend waiting on 429 answers before the error is raised."""

APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
JSON: Final = "application/json"


class Cluster(Protocol):
    """What the runtime needs from a cluster; `HttpCluster` is the one implementation."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        """One object."""

    async def list(
        self, kind: Kind, namespace: str | None = None, selector: str = "", fields: str = ""
    ) -> tuple[Objects, str]:
        """All objects that match, and the resourceVersion of the list."""

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        selector: str = "",
        fields: str = "",
        version: str = "",
        silence: float = SILENCE_SECONDS,
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes after `version`."""

    async def apply(self, kind: Kind, obj: Mapping[str, Any], manager: str) -> Object:
        """Server-side apply, forced; returns the object as stored."""

    async def apply_status(self, kind: Kind, obj: Mapping[str, Any], manager: str) -> Object:
        """The same on the status subresource."""

    async def merge(self, kind: Kind, obj: Mapping[str, Any], manager: str) -> Object:
        """JSON merge patch, which replaces lists as a whole."""

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str) -> Object:
        """Delete in the background, only the object with this uid."""

    async def create(self, kind: Kind, obj: Mapping[str, Any]) -> Object:
        """Create; for what is not applied: Events and the first Lease."""

    async def replace(self, kind: Kind, obj: Mapping[str, Any], seconds: float = REQUEST_SECONDS) -> Object:
        """Replace under optimistic locking; for the Lease."""


@contextmanager
def unfenced() -> Iterator[None]:
    """Writes inside need no leadership: how the Lease itself is taken and given back."""
    token = fenced.set(False)
    try:
        yield
    finally:
        fenced.reset(token)


class HttpCluster:
    """`Cluster` over the shared session.

    Every method raises a leaf of the tree in `kube.error`; 429 answers are waited out as the server asks, within
    `THROTTLE_BUDGET`, and after a 401 the call is repeated once when there is another certificate to try with.

    Args:
        connection: The shared session.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, kind: Kind, namespace: str | None, name: str, seconds: float = REQUEST_SECONDS) -> Object:
        """Read one object."""
        return await self._call("GET", kind.path(namespace, name), seconds=seconds)

    async def list(
        self, kind: Kind, namespace: str | None = None, selector: str = "", fields: str = ""
    ) -> tuple[Objects, str]:
        """Read a whole collection in chunks of one consistent resourceVersion.

        Returns:
            The objects, each with apiVersion and kind filled in, and the resourceVersion to watch from.
        """
        for _ in range(3):
            try:
                return await self._list_once(kind, namespace, selector, fields)
            except Gone:  # the continue token outlived the server's history: start over
                continue
        return await self._list_once(kind, namespace, selector, fields)

    async def _list_once(self, kind: Kind, namespace: str | None, selector: str, fields: str) -> tuple[Objects, str]:
        items: Objects = []
        filters = {"labelSelector": selector, "fieldSelector": fields}
        params = {"limit": str(CHUNK)} | {name: value for name, value in filters.items() if value}
        while True:
            page = await self._call("GET", kind.path(namespace), params=params)
            for item in page.get("items") or ():
                item.setdefault("apiVersion", kind.api_version)
                item.setdefault("kind", kind.kind)
                items.append(item)
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            params["continue"] = metadata["continue"]

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        selector: str = "",
        fields: str = "",
        version: str = "",
        silence: float = SILENCE_SECONDS,
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield `(type, object)` until the server ends the stream; bookmarks are yielded like changes.

        Raises:
            Gone: `version` is too old; list again.
            Transport: The stream broke, or was silent for `silence` seconds.
        """
        path = kind.path(namespace)
        params = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        params |= {"labelSelector": selector} if selector else {}
        params |= {"fieldSelector": fields} if fields else {}
        params |= {"resourceVersion": version} if version else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence)
        base, session = await self._connection.open()
        call = f"WATCH {path}"
        try:
            token = ours.set(True)
            try:
                response = await session.get(f"{base}{path}", params=params, timeout=timeout)
            finally:
                ours.reset(token)
            async with response:
                if response.status >= 400:
                    raise from_answer(call, response.status, await response.read(), response.headers)
                async for line in _lines(response):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        code = int(event["object"].get("code", 500))
                        raise from_answer(call, code, json.dumps(event["object"]).encode(), {})
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, ValueError, RuntimeError) as error:
            raise Transport(call, _words(error)) from error

    async def apply(self, kind: Kind, obj: Mapping[str, Any], manager: str) -> Object:
        """Server-side apply, taking fields over from other managers."""
        return await self._apply(kind, obj, manager, "")

    async def apply_status(self, kind: Kind, obj: Mapping[str, Any], manager: str) -> Object:
        """Server-side apply on the status subresource."""
        return await self._apply(kind, obj, manager, "status")

    async def _apply(self, kind: Kind, obj: Mapping[str, Any], manager: str, subresource: str) -> Object:
        metadata = obj["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"], subresource)
        params = {"fieldManager": manager, "force": "true"}
        return await self._call("PATCH", path, params=params, body=obj, content=APPLY)

    async def merge(self, kind: Kind, obj: Mapping[str, Any], manager: str) -> Object:
        """JSON merge patch: lists are replaced as a whole; with a resourceVersion it is conditional."""
        metadata = obj["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"])
        return await self._call("PATCH", path, params={"fieldManager": manager}, body=obj, content=MERGE)

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str) -> Object:
        """Delete in the background.

        Raises:
            Conflict: An object of that name exists with another uid.
        """
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        return await self._call("DELETE", kind.path(namespace, name), body=body)

    async def create(self, kind: Kind, obj: Mapping[str, Any], seconds: float = REQUEST_SECONDS) -> Object:
        """Create an object.

        Raises:
            Conflict: The name is taken.
        """
        return await self._call("POST", kind.path(obj["metadata"].get("namespace")), body=obj, seconds=seconds)

    async def replace(self, kind: Kind, obj: Mapping[str, Any], seconds: float = REQUEST_SECONDS) -> Object:
        """Replace an object that still has the resourceVersion in `obj`.

        Raises:
            Conflict: Somebody changed it in between.
        """
        metadata = obj["metadata"]
        return await self._call("PUT", kind.path(metadata["namespace"], metadata["name"]), body=obj, seconds=seconds)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = JSON,
        seconds: float = REQUEST_SECONDS,
    ) -> Object:
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        budget = min(THROTTLE_BUDGET, seconds)
        renewed = False
        while True:
            try:
                return await self._once(method, path, params=params, data=data, content=content, seconds=seconds)
            except TooManyRequests as error:
                if error.retry_after > budget:
                    raise
                budget -= error.retry_after
                await asyncio.sleep(error.retry_after)
            except Unauthorized:
                if renewed or not await self._connection.renew():
                    raise
                renewed = True

    async def _once(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        data: bytes | None,
        content: str,
        seconds: float,
    ) -> Object:
        call = f"{method} {path}"
        base, session = await self._connection.open()
        headers = {} if data is None else {"Content-Type": content}
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        token = ours.set(True)
        try:
            async with session.request(
                method, f"{base}{path}", params=params, data=data, headers=headers, timeout=timeout
            ) as response:
                raw = await response.read()
                if response.status >= 400:
                    raise from_answer(call, response.status, raw, response.headers)
                document: Object = json.loads(raw)
                return document
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Transport(call, _words(error)) from error
        except RuntimeError as error:  # the session was closed under us, by kopf's re-authentication
            if session.closed:
                raise Transport(call, "the session was closed by a new log-in") from error
            raise
        finally:
            ours.reset(token)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    # Objects can be longer than the reader's line limit, so lines are put together here.
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line


def _words(error: BaseException) -> str:
    return "timed out" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"

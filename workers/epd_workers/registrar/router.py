"""The router's worker endpoints."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import aiohttp

from epd_workers.registrar.membership import Worker
from epd_workers.registrar.pod import REVISION_LABEL, Pod

POD_LABEL = "serving.epd.dev/pod"
UID_LABEL = "serving.epd.dev/pod-uid"
IMAGE_LABEL = "serving.epd.dev/image"
# Everything here happens on loopback; a router that needs longer is in trouble.
TIMEOUT = aiohttp.ClientTimeout(total=5, connect=2)


class RouterError(Exception):
    """The router did not answer, or refused; the message says what was asked."""


class Router:
    """Client of one router.

    Args:
        session: Shared HTTP session.
        url: The router's address without a trailing slash.
        key: The control key.
        engine_port: Port of the engines' HTTP servers.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str, *, engine_port: int) -> None:
        self._session = session
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"}
        self._engine_port = engine_port

    async def workers(self) -> list[Worker]:
        """Everything that the router lists.

        Raises:
            RouterError: No answer, or not a worker list.
        """
        _, body = await self._call("GET", "/workers", HTTPStatus.OK)
        try:
            return [_worker(entry) for entry in body["workers"]]
        except (KeyError, TypeError) as error:
            raise RouterError(f"GET /workers: the answer is not a worker list ({error!r})") from error

    async def add(self, pod: Pod) -> None:
        """Ask the router to register a pod; it does so in the background, once the pod answers its probes.

        Raises:
            RouterError: No answer, or refused.
        """
        body: dict[str, Any] = {
            "url": pod.url(self._engine_port),
            "worker_type": pod.role,
            "pairing_protocol": pod.key,
            "labels": {
                POD_LABEL: pod.name,
                UID_LABEL: pod.uid,
                IMAGE_LABEL: pod.image,
                REVISION_LABEL: pod.revision,
            },
        }
        if pod.role == "prefill":
            body["bootstrap_port"] = pod.bootstrap_port
        # A conflict means that an earlier request for this address is still being worked on.
        await self._call("POST", "/workers", HTTPStatus.ACCEPTED, HTTPStatus.CONFLICT, json=body)

    async def remove(self, worker: Worker) -> None:
        """Drain a worker and take it out: no new request at once, running ones finish.

        Raises:
            RouterError: No answer, or refused.
        """
        await self._call("DELETE", f"/workers/{worker.id}", HTTPStatus.ACCEPTED, HTTPStatus.NOT_FOUND)

    async def _call(self, method: str, path: str, *expected: int, json: Any = None) -> tuple[int, Any]:
        try:
            async with self._session.request(
                method, self._url + path, headers=self._headers, json=json, timeout=TIMEOUT
            ) as response:
                if response.status not in expected:
                    text = (await response.text())[:200]
                    raise RouterError(f"{method} {path}: the router answered {response.status}: {text}")
                return response.status, await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise RouterError(f"{method} {path}: {str(error) or repr(error)}") from error


def _worker(entry: dict[str, Any]) -> Worker:
    labels = entry.get("labels") or {}
    return Worker(
        id=entry["id"],
        url=entry["url"],
        role=entry.get("worker_type", ""),
        key=entry.get("pairing_protocol") or "",
        pod_uid=labels.get(UID_LABEL, ""),
        image=labels.get(IMAGE_LABEL, ""),
        status=entry.get("status", ""),
        load=int(entry.get("load") or 0),
    )

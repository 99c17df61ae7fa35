"""One pool of connections to the API server, shared by our own calls and by kopf.

Everything that must hold for *every* request is a middleware here, because kopf sends requests that our code never
sees: the identity header (re-read when tokens rotate), the user agent that names the lease holder in the audit log,
the metrics, and the fence that stops a former leader from writing.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

    from epd_operator.kube.credential import Credential, Server

READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
CONNECT_SECONDS: Final = 5.0

ours: ContextVar[bool] = ContextVar("ours", default=False)
"""True inside calls of `kube.client`; kopf's own requests run without it."""

fenced: ContextVar[bool] = ContextVar("fenced", default=True)
"""False for the writes that need no leadership: those on the Lease itself."""


class LeadershipLost(Exception):
    """A write was refused locally, because this process may no longer be the leader."""


class Connection:
    """Opens, renews and closes the one `aiohttp.ClientSession`.

    Args:
        credential: Who we are.
        user_agent: Sent with every request.
        may_write: Asked before every write; False refuses it.
        observe: Called after every request with method, path, status (0 without an answer) and seconds.
        foreign: Called when somebody else's read on this session (kopf's) is answered, with path and whether it is
            a watch.
    """

    def __init__(
        self,
        credential: Credential,
        *,
        user_agent: str,
        may_write: Callable[[], bool] = lambda: True,
        observe: Callable[[str, str, int, float], None] = lambda *_: None,
        foreign: Callable[[str, bool], None] = lambda *_: None,
    ) -> None:
        self._credential = credential
        self._user_agent = user_agent
        self._may_write = may_write
        self._observe = observe
        self._foreign = foreign
        self._session: aiohttp.ClientSession | None = None
        self._retired: list[aiohttp.ClientSession] = []
        self._server: Server | None = None

    async def open(self) -> tuple[str, aiohttp.ClientSession]:
        """Server address and an open session; a closed one (kopf closes it on 401 and on exit) is replaced.

        Raises:
            CredentialError: Nothing usable is configured.
        """
        if self._session is None or self._session.closed:
            server = self._server = await self._credential.server()
            # No limit: every watch holds one connection for good, and our own calls are bounded by the workers.
            connector = aiohttp.TCPConnector(limit=0, ssl=True if server.tls is None else server.tls)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers={"User-Agent": self._user_agent, "Accept": "application/json"},
                proxy=server.proxy,
                middlewares=(self._each_request,),
            )
        assert self._server is not None
        return self._server.url, self._session

    async def renew(self) -> bool:
        """Read the credentials again; True when that led to another server or certificate, and so to a new session.

        The old session stays open for the streams on it: closing it under them would leave them waiting for good.
        """
        await self._credential.reload()
        server = await self._credential.server()
        if self._server is None or self._server.fingerprint == server.fingerprint:
            return False
        if self._session is not None:
            self._retired.append(self._session)
            self._session = None
        return True

    async def close(self) -> None:
        """Close everything; the next `open` makes a new session."""
        for session in (*self._retired, self._session):
            if session is not None:
                await session.close()
        self._retired.clear()
        self._session = None

    async def _each_request(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        if request.method not in READ_METHODS and fenced.get() and not self._may_write():
            raise LeadershipLost(f"{request.method} {request.url.path} refused: the lease is no longer held")
        if self._server is not None and self._server.tls_name:
            request.server_hostname = self._server.tls_name
        authorization = await self._credential.header()
        response = await self._send(request, send, authorization)
        if response.status == 401 and await self._credential.replaced(authorization):
            # Answered here, an expired token reaches neither our callers nor kopf, which would close the session.
            response.release()
            response = await self._send(request, send, await self._credential.header())
        if not ours.get() and request.method == "GET" and response.status < 400:
            self._foreign(request.url.path, "watch" in request.url.query)
        return response

    async def _send(self, request: ClientRequest, send: ClientHandlerType, authorization: str | None) -> ClientResponse:
        if authorization is not None:
            request.headers["Authorization"] = authorization
        started = time.perf_counter()
        status = 0
        try:
            response = await send(request)
            status = response.status
        finally:
            self._observe(request.method, request.url.path, status, time.perf_counter() - started)
        return response

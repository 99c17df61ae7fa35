"""The transport against a real HTTP server on the loopback that misbehaves on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from epd_operator.kube import (
    Connection,
    Credential,
    Forbidden,
    Gone,
    HttpCluster,
    LeadershipLost,
    TooManyRequests,
    Transport,
    Unauthorized,
    unfenced,
)
from epd_operator.kube.kind import DEPLOYMENT, LEASE

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
AGENT = "epd-operator/1 (pod_1)"


def status(code: int, reason: str = "", message: str = "no", **headers: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers=headers)


class Server:
    """Answers by a script, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.script: list[Handler | web.Response] = []
        self.tokens = ["token-1"]
        self.observed: list[tuple[str, str, int]] = []
        self.foreign: list[tuple[str, bool]] = []
        self.may_write = True
        self.loads = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        self.bodies.append(await request.read())
        step = self.script.pop(0) if self.script else web.json_response({"items": [], "metadata": {}})
        return step if isinstance(step, web.Response) else await step(request)

    def load(self) -> Any:
        self.loads += 1
        token = self.tokens[min(self.loads, len(self.tokens)) - 1]
        return SimpleNamespace(
            host=self.url,
            ssl_ca_cert=None,
            cert_file=None,
            key_file=None,
            verify_ssl=True,
            tls_server_name=None,
            proxy=None,
            get_api_key_with_prefix=lambda _name: f"Bearer {token}",
        )

    url = ""


@asynccontextmanager
async def serve() -> AsyncIterator[tuple[Server, Connection, HttpCluster]]:
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    connection = Connection(
        Credential(server.load),
        user_agent=AGENT,
        may_write=lambda: server.may_write,
        observe=lambda method, path, code, _seconds: server.observed.append((method, path, code)),
        foreign=lambda path, watch: server.foreign.append((path, watch)),
    )
    try:
        yield server, connection, HttpCluster(connection)
    finally:
        await connection.close()
        await runner.cleanup()


def page(names: list[str], token: str = "", version: str = "7") -> web.Response:
    items = [{"metadata": {"name": name}} for name in names]
    return web.json_response({"items": items, "metadata": {"resourceVersion": version, "continue": token}})


async def test_a_list_is_read_in_chunks_and_names_its_kinds() -> None:
    async with serve() as (server, _, cluster):
        server.script = [page(["a", "b"], "next"), page(["c"])]
        items, version = await cluster.list(DEPLOYMENT, "ns", "x=y")
        assert [item["metadata"]["name"] for item in items] == ["a", "b", "c"]
        assert {(item["apiVersion"], item["kind"]) for item in items} == {("apps/v1", "Deployment")}
        assert version == "7"
        assert server.asked[0].path == "/apis/apps/v1/namespaces/ns/deployments"
        assert dict(server.asked[0].query) == {"limit": "500", "labelSelector": "x=y"}
        assert server.asked[1].query["continue"] == "next"


async def test_a_list_whose_token_expired_starts_over() -> None:
    async with serve() as (server, _, cluster):
        server.script = [page(["old"], "next"), status(410, "Expired"), page(["new"])]
        items, _ = await cluster.list(DEPLOYMENT)
        assert [item["metadata"]["name"] for item in items] == ["new"]


async def test_apply_is_forced_and_names_its_manager() -> None:
    async with serve() as (server, _, cluster):
        server.script = [web.json_response({"metadata": {}})]
        await cluster.apply(DEPLOYMENT, {"metadata": {"name": "a", "namespace": "ns"}}, "me")
        (request,) = server.asked
        assert request.method == "PATCH"
        assert request.path == "/apis/apps/v1/namespaces/ns/deployments/a"
        assert dict(request.query) == {"fieldManager": "me", "force": "true"}
        assert request.headers["Content-Type"] == "application/apply-patch+yaml"


async def test_status_goes_to_its_subresource_and_delete_carries_the_uid() -> None:
    async with serve() as (server, _, cluster):
        await cluster.apply_status(DEPLOYMENT, {"metadata": {"name": "a", "namespace": "ns"}}, "me")
        await cluster.delete(DEPLOYMENT, "ns", "a", uid="u1")
        assert server.asked[0].path.endswith("/deployments/a/status")
        assert json.loads(server.bodies[1]) == {"propagationPolicy": "Background", "preconditions": {"uid": "u1"}}


async def test_every_request_says_who_holds_the_lease_also_those_of_others() -> None:
    async with serve() as (server, connection, cluster):
        await cluster.list(DEPLOYMENT)
        url, session = await connection.open()
        async with session.get(f"{url}/apis/apps/v1/deployments?limit=500") as response:
            await response.read()
        async with session.get(f"{url}/apis/apps/v1/deployments?watch=true") as response:
            await response.read()
        assert {request.headers["User-Agent"] for request in server.asked} == {AGENT}
        assert {request.headers["Authorization"] for request in server.asked} == {"Bearer token-1"}
        assert server.foreign == [("/apis/apps/v1/deployments", False), ("/apis/apps/v1/deployments", True)]
        assert len(server.observed) == 3


async def test_overload_is_waited_out_as_the_server_asks() -> None:
    async with serve() as (server, _, cluster):
        server.script = [status(429, "TooManyRequests", **{"Retry-After": "0.2"}), page(["a"])]
        start = asyncio.get_running_loop().time()
        items, _ = await cluster.list(DEPLOYMENT)
        assert len(items) == 1
        assert asyncio.get_running_loop().time() - start >= 0.2


async def test_overload_beyond_the_budget_is_an_error() -> None:
    async with serve() as (server, _, cluster):
        server.script = [status(429, "TooManyRequests", **{"Retry-After": "600"})]
        with pytest.raises(TooManyRequests) as caught:
            await cluster.list(DEPLOYMENT)
        assert caught.value.retry_after == 600


async def test_an_expired_token_is_replaced_for_everybody_and_the_session_stays() -> None:
    async with serve() as (server, connection, cluster):
        server.tokens = ["expired", "fresh"]
        server.script = [status(401, "Unauthorized"), page(["a"])]
        connection._credential._clock = iter(range(0, 1000, 2)).__next__  # time passes
        await cluster.list(DEPLOYMENT)
        assert [r.headers["Authorization"] for r in server.asked] == ["Bearer expired", "Bearer fresh"]
        url, session = await connection.open()
        server.tokens.append("fresher")
        server.script = [status(401, "Unauthorized")]
        async with session.get(f"{url}/apis/apps/v1/deployments?watch=true") as response:
            assert response.status == 200
        assert server.asked[-1].headers["Authorization"] == "Bearer fresher"
        assert (await connection.open())[1] is session


async def test_credentials_that_stay_wrong_are_an_error_and_are_not_read_without_end() -> None:
    async with serve() as (server, _, cluster):
        server.script = [status(401, "Unauthorized") for _ in range(20)]
        for _ in range(5):
            with pytest.raises(Unauthorized):
                await cluster.list(DEPLOYMENT)
        assert len(server.asked) == 5
        assert server.loads <= 6


async def test_a_new_server_or_certificate_makes_a_new_session_and_spares_the_streams() -> None:
    async with serve() as (server, connection, _), serve() as (other, _, _):
        _, before = await connection.open()
        assert not await connection.renew()
        server.url = other.url
        assert await connection.renew()
        url, after = await connection.open()
        assert (url, after is before, before.closed) == (other.url, False, False)
        await connection.close()
        assert before.closed


async def test_a_session_closed_by_kopf_is_replaced() -> None:
    async with serve() as (_, connection, cluster):
        await cluster.list(DEPLOYMENT)
        _, session = await connection.open()
        await session.close()
        await cluster.list(DEPLOYMENT)


async def test_no_answer_is_a_transport_error() -> None:
    async with serve() as (server, _, cluster):

        async def hang(_: web.Request) -> web.Response:
            await asyncio.sleep(5)
            return web.Response()

        server.script = [hang]
        with pytest.raises(Transport, match="timed out"):
            await cluster.get(DEPLOYMENT, "ns", "a", seconds=0.1)
        server.script = [web.Response(text="<html>a proxy</html>")]
        with pytest.raises(Transport):
            await cluster.get(DEPLOYMENT, "ns", "a")
        assert server.observed[0][2] == 0


async def test_an_error_keeps_the_servers_words_and_no_credentials() -> None:
    async with serve() as (server, _, cluster):
        server.script = [status(403, "Forbidden", "exceeded quota: compute")]
        with pytest.raises(Forbidden, match="exceeded quota: compute") as caught:
            await cluster.get(DEPLOYMENT, "ns", "a")
        assert "token-1" not in repr(caught.value)


async def test_a_former_leader_cannot_write_but_may_read_and_fight_for_the_lease() -> None:
    async with serve() as (server, _, cluster):
        server.may_write = False
        await cluster.list(DEPLOYMENT)
        with pytest.raises(LeadershipLost):
            await cluster.apply(DEPLOYMENT, {"metadata": {"name": "a", "namespace": "ns"}}, "me")
        with pytest.raises(LeadershipLost):
            await cluster.delete(DEPLOYMENT, "ns", "a", uid="u")
        with unfenced():
            await cluster.replace(LEASE, {"metadata": {"name": "l", "namespace": "ns"}})
        assert [request.method for request in server.asked] == ["GET", "PUT"]


def stream(*lines: dict[str, Any] | bytes, pieces: int = 7) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        raw = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
        for start in range(0, len(raw), pieces):
            await response.write(raw[start : start + pieces])
            await asyncio.sleep(0)
        return response

    return handler


async def test_a_watch_puts_split_lines_together() -> None:
    async with serve() as (server, _, cluster):
        added = {"type": "ADDED", "object": {"metadata": {"name": "a"}, "big": "x" * 500}}
        mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
        server.script = [stream(added, mark)]
        actual = [event async for event in cluster.watch(LEASE, "ns", fields="metadata.name=l", version="3")]
        assert actual == [("ADDED", added["object"]), ("BOOKMARK", mark["object"])]
        query = server.asked[0].query
        assert (query["watch"], query["fieldSelector"], query["resourceVersion"]) == ("true", "metadata.name=l", "3")
        assert server.foreign == []


async def test_a_watch_from_too_far_back_is_gone() -> None:
    async with serve() as (server, _, cluster):
        server.script = [stream({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})]
        with pytest.raises(Gone):
            async for _ in cluster.watch(LEASE):
                pass
        server.script = [status(410, "Expired")]
        with pytest.raises(Gone):
            async for _ in cluster.watch(LEASE):
                pass


async def test_a_broken_watch_is_a_transport_error() -> None:
    async with serve() as (server, _, cluster):
        server.script = [stream(b'{"type": "ADDED", "object"\n')]
        with pytest.raises(Transport):
            async for _ in cluster.watch(LEASE):
                pass

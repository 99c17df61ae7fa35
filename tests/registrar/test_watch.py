"""The watch against a scripted API server: the faults that a real one shows too seldom to wait for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epd_workers.registrar.access import Access, AccessError, access, in_cluster
from epd_workers.registrar.watch import PodWatch
from tests.support.polling import eventually
from tests.support.ports import free_port
from tests.support.registrar_values import manifest


def named(uid: str, **changes: Any) -> dict[str, Any]:
    return manifest(metadata__uid=uid, metadata__name=uid, **changes)


class Api:
    """Answers lists from `pods` and watches from `script`, one entry a watch; an entry is a list of events."""

    def __init__(self) -> None:
        self.port = free_port()
        self.pods: list[dict[str, Any]] = []
        self.script: list[list[dict[str, Any]]] = []
        self.lists = 0
        self.watches: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.status = 200
        self.silent = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.status != 200:
            return web.json_response({"message": "told to fail"}, status=self.status)
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response({"metadata": {"resourceVersion": str(self.lists)}, "items": self.pods})
        self.watches.append(dict(request.query))
        response = web.StreamResponse()
        await response.prepare(request)
        for event in self.script.pop(0) if self.script else []:
            await response.write(json.dumps(event).encode() + b"\n")
        wait = 3600 if self.silent else float(request.query["timeoutSeconds"])
        await asyncio.sleep(wait)
        return response


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/ns/pods", api.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.05, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", api.port).start()
    yield api
    await runner.cleanup()


Follow = Callable[..., PodWatch]


@pytest.fixture
async def follow(api: Api) -> AsyncIterator[Follow]:
    tasks: list[asyncio.Task[None]] = []
    async with aiohttp.ClientSession() as session:

        def start(resync: float = 30, failed: Callable[[], None] = lambda: None) -> PodWatch:
            where = Access(f"http://127.0.0.1:{api.port}", None, lambda: {"Authorization": f"Bearer {len(api.tokens)}"})
            watch = PodWatch(
                session, where, "ns", "a=b", engine_port=30000, resync=resync, changed=lambda: None, failed=failed
            )
            tasks.append(asyncio.create_task(watch.run()))
            return watch

        yield start
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def names(watch: PodWatch) -> set[str]:
    return {pod.name for pod in watch.pods or []}


async def test_list_then_events(api: Api, follow: Follow) -> None:
    api.pods = [named("a"), named("b")]
    long = named("c", metadata__annotations={"long": "x" * 300_000})
    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "9"}}
    api.script = [
        [
            {"type": "BOOKMARK", "object": bookmark},
            {"type": "DELETED", "object": named("a")},
            {"type": "ADDED", "object": long},
            {"type": "MODIFIED", "object": named("b", metadata__labels={})},
        ]
    ]
    watch = follow()
    assert watch.pods is None
    await eventually(lambda: names(watch) == {"c"})
    assert api.watches[0]["resourceVersion"] == "1"
    assert api.watches[0]["labelSelector"] == "a=b"


async def test_an_expired_version_leads_to_a_new_list(api: Api, follow: Follow) -> None:
    api.script = [[{"type": "ERROR", "object": {"code": 410, "message": "too old"}}]]
    errors: list[int] = []
    watch = follow(failed=lambda: errors.append(1))
    await eventually(lambda: api.lists == 1)
    api.pods = [named("late")]
    await eventually(lambda: names(watch) == {"late"})
    assert errors == [1]


async def test_a_watch_that_went_silent_is_replaced(api: Api, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epd_workers.registrar.watch.PATIENCE", 0.2)
    api.silent = True
    watch = follow(resync=0.3)
    await eventually(lambda: len(api.watches) == 1)
    api.pods = [named("unheard-of")]
    await eventually(lambda: names(watch) == {"unheard-of"})


async def test_pods_stay_known_while_the_api_server_is_away(api: Api, follow: Follow) -> None:
    api.pods = [named("a")]
    errors: list[int] = []
    watch = follow(resync=0.1, failed=lambda: errors.append(1))
    await eventually(lambda: names(watch) == {"a"})
    api.status = 503
    await eventually(lambda: len(errors) >= 2)
    assert names(watch) == {"a"}
    api.status, api.pods = 200, [named("b")]
    await eventually(lambda: names(watch) == {"b"}, 10)


async def test_credentials_are_asked_for_each_time(api: Api, follow: Follow) -> None:
    follow(resync=0.1)
    await eventually(lambda: len(api.tokens) >= 2)
    assert api.tokens[:2] == ["Bearer 0", "Bearer 1"]


def test_outside_a_pod_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(AccessError, match="KUBECONFIG"):
        in_cluster(tmp_path)


def test_a_kubeconfig_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    path = tmp_path / "config"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"token": "t0ken"}}],
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(path))
    where = access()
    assert where.server == "http://127.0.0.1:1"
    assert where.headers() == {"Authorization": "Bearer t0ken"}

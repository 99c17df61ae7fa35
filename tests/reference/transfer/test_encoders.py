from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import numpy as np
import pytest
import zmq.asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from epd_workers.reference.transfer.embedding import Embedding, push
from epd_workers.reference.transfer.encoders import EncoderPool, EncodersUnavailableError, ImageRefusedError, split
from epd_workers.reference.transfer.registry import EncoderRegistry, ProbePolicy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

HIDDEN = 2
Make = "Callable[[str], web.Response | None]"


@dataclass
class Fleet:
    """Fake encoders that answer image N with N rows of the value N, and the pool that asks them."""

    pool: EncoderPool
    registry: EncoderRegistry
    context: zmq.asyncio.Context
    session: aiohttp.ClientSession
    exits: contextlib.AsyncExitStack
    served: dict[str, list[str]] = field(default_factory=dict)

    async def encoder(self, name: str, fail: Callable[[], web.Response] | None = None, delay: float = 0) -> str:
        self.served[name] = []

        async def encode(request: web.Request) -> web.Response:
            body = await request.json()
            self.served[name] += body["mm_items"]
            await asyncio.sleep(delay)
            if fail is not None:
                return fail()
            tokens = tuple(int(item) for item in body["mm_items"])
            rows = np.concatenate([np.full((count, HIDDEN), count, np.float32) for count in tokens])
            sent = Embedding(body["req_id"], body["num_parts"], body["part_idx"], tokens, rows, name)
            await push(self.context, body["prefill_host"], body["embedding_port"], sent, 1)
            return web.json_response(None)

        async def health(_request: web.Request) -> web.Response:
            return web.Response()

        app = web.Application()
        app.router.add_post("/encode", encode)
        app.router.add_get("/health", health)
        server = await self.exits.enter_async_context(TestServer(app))
        url = str(server.make_url("")).rstrip("/")
        self.registry.add(url)
        return url


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as exits:
        context: zmq.asyncio.Context = zmq.asyncio.Context()
        exits.callback(context.destroy, linger=0)
        session = await exits.enter_async_context(aiohttp.ClientSession())
        registry = EncoderRegistry(ProbePolicy(interval=0.05, timeout=0.2, misses=2, forget_after=0.5))
        host = "127.0.0.1"
        pool = EncoderPool(registry, session, context, bind_host=host, advertised_host=host, hidden=HIDDEN, seconds=0.5)
        yield Fleet(pool, registry, context, session, exits)


def error(status: int) -> Callable[[], web.Response]:
    return lambda: web.json_response({"status": "error", "message": f"no {status}", "req_id": ""}, status=status)


@given(st.integers(1, 30), st.integers(1, 10))
def test_split_keeps_order_and_is_even(images: int, encoders: int) -> None:
    names = [str(number) for number in range(images)]
    parts = split("r", names, encoders)
    assert [image for part in parts for image in part.images] == names
    sizes = [len(part.images) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    assert len(parts) == min(images, encoders)


async def test_images_are_spread_and_come_back_in_order(fleet: Fleet) -> None:
    for name in ("e0", "e1", "e2"):
        await fleet.encoder(name)
    images = ["3", "1", "2", "5", "4"]
    actual = await fleet.pool.encode("r", images)
    assert [len(image.rows) for image in actual] == [3, 1, 2, 5, 4]
    assert [image.rows[0, 0] for image in actual] == [3, 1, 2, 5, 4]
    assert {image.encoder for image in actual} == {"e0", "e1", "e2"}
    assert all(fleet.served.values())


@pytest.mark.parametrize("status", [500, 503])
async def test_another_encoder_takes_over_from_a_failing_one(fleet: Fleet, status: int) -> None:
    await fleet.encoder("bad", error(status))
    await fleet.encoder("good")
    for _ in range(4):
        actual = await fleet.pool.encode("r", ["1", "2"])
        assert [image.encoder for image in actual] == ["good", "good"]


async def test_a_hanging_and_a_dead_encoder_are_passed_over(fleet: Fleet) -> None:
    await fleet.encoder("slow", delay=30)
    fleet.registry.add("http://127.0.0.1:1")
    await fleet.encoder("good")
    actual = await fleet.pool.encode("r", ["1", "2", "3"])
    assert {image.encoder for image in actual} == {"good"}


async def test_a_lying_encoder_is_passed_over(fleet: Fleet) -> None:
    await fleet.encoder("silent", lambda: web.json_response(None))
    await fleet.encoder("good")
    assert (await fleet.pool.encode("r", ["1"]))[0].encoder == "good"


async def test_no_encoder_at_all(fleet: Fleet) -> None:
    with pytest.raises(EncodersUnavailableError, match="no image encoder is registered"):
        await fleet.pool.encode("r", ["1"])


async def test_all_encoders_failing(fleet: Fleet) -> None:
    await fleet.encoder("bad", error(500))
    with pytest.raises(EncodersUnavailableError, match="status 500: no 500"):
        await fleet.pool.encode("r", ["1"])


@pytest.mark.parametrize("status", [400, 413])
async def test_a_refused_image_is_not_tried_elsewhere(fleet: Fleet, status: int) -> None:
    urls = [await fleet.encoder("a", error(status)), await fleet.encoder("b", error(status))]
    for tries in range(1, 5):
        with pytest.raises(ImageRefusedError, match=f"no {status}"):
            await fleet.pool.encode("r", ["1"])
        assert sum(map(len, fleet.served.values())) == tries
    assert sorted(fleet.registry.healthy()) == sorted(urls)


async def test_a_full_encoder_is_not_a_lost_one(fleet: Fleet) -> None:
    url = await fleet.encoder("full", error(503))
    for _ in range(4):
        with pytest.raises(EncodersUnavailableError, match="no 503"):
            await fleet.pool.encode("r", ["1"])
    assert fleet.registry.healthy() == [url]


async def test_a_cancelled_request_leaves_the_encoders(fleet: Fleet) -> None:
    await fleet.encoder("slow", delay=0.2)
    task = asyncio.create_task(fleet.pool.encode("r", ["1"]))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_registry_drops_and_readmits_by_health(fleet: Fleet) -> None:
    url = await fleet.encoder("e0")
    fleet.registry.add("http://127.0.0.1:1")
    watch = asyncio.create_task(fleet.registry.watch(fleet.session))
    async with asyncio.timeout(3):
        while fleet.registry.healthy() != [url]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    for _ in range(2):
        fleet.registry.missed(url)
    assert fleet.registry.healthy() == []
    async with asyncio.timeout(3):
        while fleet.registry.healthy() != [url]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        while await listed(fleet) != [url]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


async def listed(fleet: Fleet) -> list[str]:
    async with TestServer(fleet.registry.application()) as server:
        answer = await fleet.session.get(server.make_url("/list_encoder_urls"))
        return list((await answer.json())["encoder_urls"])


async def test_registration_over_http() -> None:
    registry = EncoderRegistry(ProbePolicy())
    async with TestServer(registry.application()) as server, aiohttp.ClientSession() as session:

        async def call(method: str, path: str, body: Any) -> int:
            async with session.request(method, server.make_url(path), json=body) as answer:
                return answer.status

        for _ in range(2):
            assert await call("POST", "/register_encoder_url", {"url": "http://10.0.0.1:30000/"}) == 200
        assert registry.healthy() == ["http://10.0.0.1:30000"]
        for url in ("ftp://x", "http://", "http://u:p@x", "http://x/path", "http://x:99999", 5, None):
            assert await call("POST", "/register_encoder_url", {"url": url}) == 400
        assert await call("POST", "/register_encoder_url", []) == 400
        for _ in range(2):
            assert await call("DELETE", "/unregister_encoder_url", {"url": "http://10.0.0.1:30000"}) == 200
        assert registry.healthy() == []
        for number in range(256):
            registry.add(f"http://10.0.0.1:{number + 1}")
        assert await call("POST", "/register_encoder_url", {"url": "http://10.0.0.2:1"}) == 400

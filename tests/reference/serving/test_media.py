from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from epd_workers.reference.model.interface import BadImage
from epd_workers.reference.serving.errors import ApiError
from epd_workers.reference.serving.media import MediaLimits, load_image, media_session
from tests.support.reference.serving import data_url, png

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LIMITS = MediaLimits(max_bytes=10_000, seconds=0.3, loopback=True)


async def image(_request: web.Request) -> web.Response:
    return web.Response(body=png("blue"), content_type="image/png")


async def large(_request: web.Request) -> web.Response:
    return web.Response(body=bytes(20_000))


async def slow(_request: web.Request) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


async def hop(request: web.Request) -> web.Response:
    left = int(request.match_info["n"])
    return web.Response(status=302, headers={"Location": f"/hop/{left - 1}" if left else "/image"})


async def away(request: web.Request) -> web.Response:
    return web.Response(status=302, headers={"Location": request.query["to"]})


async def broken(_request: web.Request) -> web.Response:
    return web.Response(text="no image at all")


@pytest.fixture
async def site() -> AsyncIterator[str]:
    app = web.Application()
    for path, handler in (
        ("/image", image), ("/large", large), ("/slow", slow), ("/hop/{n}", hop), ("/away", away), ("/broken", broken)
    ):  # fmt: skip
        app.router.add_get(path, handler)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with media_session(loopback=True) as made:
        yield made


@pytest.mark.parametrize("path", ["/image", "/hop/0", "/hop/2"])
async def test_images_come_from_http(site: str, session: aiohttp.ClientSession, path: str) -> None:
    actual = await load_image(session, site + path, LIMITS)
    assert (actual.size, actual.getpixel((0, 0))) == ((60, 40), (0, 0, 255))


async def test_images_come_from_data_urls(session: aiohttp.ClientSession) -> None:
    assert (await load_image(session, data_url(), LIMITS)).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/large", "larger than 10000 bytes"),
        ("/slow", r"within 0\.3 s"),
        ("/hop/3", "redirected more than 3 times"),
        ("/missing", "the answer was 404"),
        ("/away?to=file:///etc/passwd", "only http and https"),
        ("/away?to=http://169.254.169.254/", "link-local"),
        ("/away?to=http://[::ffff:169.254.169.254]/", "link-local"),
        ("/away?to=http://0.0.0.0/", "link-local"),
        ("/away?to=http://[64:ff9b::a9fe:a9fe]/", "link-local"),
        ("/away?to=http://[2002:a9fe:a9fe::]/", "link-local"),
    ],
)
async def test_what_cannot_be_fetched_says_why(site: str, session: aiohttp.ClientSession, path: str, why: str) -> None:
    with pytest.raises(ApiError, match=why) as caught:
        await load_image(session, site + path, LIMITS)
    assert (caught.value.status, caught.value.code) == (400, "invalid_image")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "[::1]", "[::ffff:127.0.0.1]", "localhost"])
async def test_a_pod_fetches_nothing_from_its_own_neighbours(host: str) -> None:
    async with media_session(loopback=False) as session:
        with pytest.raises(ApiError, match=r"loopback|no address that may be asked"):
            await load_image(session, f"http://{host}:30000/health", MediaLimits(max_bytes=10_000, seconds=5))


async def test_what_is_not_an_image_is_refused(site: str, session: aiohttp.ClientSession) -> None:
    with pytest.raises(BadImage, match=r"it is none of them$"):
        await load_image(session, f"{site}/broken", LIMITS)


async def test_a_data_url_that_is_too_large_is_refused_undecoded(session: aiohttp.ClientSession) -> None:
    with pytest.raises(ApiError, match="larger than 10000 bytes"):
        await load_image(session, "data:image/png;base64," + "A" * 20_000, LIMITS)


async def test_a_name_of_a_link_local_address_is_refused(session: aiohttp.ClientSession) -> None:
    connector = session.connector
    assert isinstance(connector, aiohttp.TCPConnector)
    resolver = connector._resolver

    class Inner:
        async def resolve(self, host: str, port: int, family: int) -> list[dict[str, object]]:
            entry = {"hostname": host, "port": port, "family": family, "proto": 0, "flags": 0}
            return [{**entry, "host": "169.254.169.254"}]

        async def close(self) -> None:
            pass

    resolver._inner = Inner()  # type: ignore[attr-defined]
    with pytest.raises(ApiError, match="the image at metadata cannot be fetched"):
        await load_image(session, "http://metadata/", LIMITS)

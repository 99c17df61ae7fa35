"""From the URL of an image in a request to the image, within bounds of size, time and reach."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver
from typing_extensions import override

from epd_workers.reference.model.image import open_image
from epd_workers.reference.serving.errors import ApiError, invalid
from epd_workers.reference.transfer.deadline import within

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_REDIRECTS = 3
REDIRECTS = {301, 302, 303, 307, 308}
CHUNK_BYTES = 64 << 10
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True)
class MediaLimits:
    """Bounds of one image: bytes of its file, seconds to fetch it, and whether it may lie on this machine."""

    max_bytes: int
    seconds: float
    loopback: bool = False


def media_session(*, loopback: bool) -> aiohttp.ClientSession:
    """Return a session for images: no cookies, no proxies, and no way to a name's forbidden addresses.

    Cloud machines serve their credentials on a link-local address, and a pod's neighbours listen on its loopback, which
    no network policy guards; an image URL comes from any client.
    """
    connector = aiohttp.TCPConnector(resolver=_PublicResolver(loopback=loopback), limit=32)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


async def load_image(session: aiohttp.ClientSession, url: str, limits: MediaLimits) -> Image:
    """Return the image at a data:, http: or https: URL.

    Raises:
        ApiError: 400; the URL cannot be used, or what is there cannot be fetched within the limits.
        BadImage: What is there is not an image that the model takes.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        data = _inline(url, limits)
    elif scheme in {"http", "https"}:
        try:
            data = await within(limits.seconds, _fetch(session, url, limits))
        except TimeoutError as error:
            raise _fault(url, f"it did not come within {limits.seconds:g} s") from error
    else:
        raise _bad(f"an image URL must begin with data:, http: or https:, this one with {scheme[:20]!r}")
    return await asyncio.to_thread(open_image, data)


def _inline(url: str, limits: MediaLimits) -> bytes:
    head, comma, text = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise _bad("a data: URL of an image must have the form data:image/png;base64,...")
    if len(text) > 4 * limits.max_bytes // 3 + 4:
        raise _bad(f"the image of the data: URL is larger than {limits.max_bytes} bytes")
    try:
        return base64.b64decode(re.sub(r"\s", "", text), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad(f"the data: URL of an image is not base64: {error}") from error


async def _fetch(session: aiohttp.ClientSession, url: str, limits: MediaLimits) -> bytes:
    for _hop in range(MAX_REDIRECTS + 1):
        _check_target(url, loopback=limits.loopback)
        try:
            async with session.get(url, allow_redirects=False) as answer:
                if answer.status not in REDIRECTS:
                    return await _content(answer, url, limits)
                url = urljoin(url, answer.headers.get("Location", ""))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _fault(url, str(error) or type(error).__name__) from error
    raise _fault(url, f"it was redirected more than {MAX_REDIRECTS} times")


async def _content(answer: aiohttp.ClientResponse, url: str, limits: MediaLimits) -> bytes:
    if answer.status != 200:
        raise _fault(url, f"the answer was {answer.status}")
    data = bytearray()
    async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
        data += chunk
        if len(data) > limits.max_bytes:
            raise _fault(url, f"it is larger than {limits.max_bytes} bytes")
    return bytes(data)


def _check_target(url: str, *, loopback: bool) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        parts.port  # noqa: B018 - raises ValueError when the port is not one
    except ValueError as error:
        raise _bad(f"the URL of an image cannot be read: {error}") from error
    if parts.scheme not in {"http", "https"} or not host:
        raise _fault(url, "only http and https with a host are followed")
    if _forbidden(host, loopback=loopback):
        raise _fault(url, "its address is link-local, loopback or not that of a host")


def _forbidden(host: str, *, loopback: bool) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        address = _embedded(address) or address
    if address.is_loopback:
        return not loopback
    return address.is_link_local or address.is_multicast or address.is_unspecified


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a gateway translates an IPv6 one to."""
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _fault(url: str, why: str) -> ApiError:
    try:
        host = urlsplit(url).hostname or "an unnamed host"
    except ValueError:
        host = "an unreadable host"
    return _bad(f"the image at {host[:200]} cannot be fetched: {why}")


def _bad(message: str) -> ApiError:
    return invalid(message, "messages", "invalid_image")


class _PublicResolver(AbstractResolver):
    """Resolves names, but not to addresses that image URLs must not reach."""

    def __init__(self, *, loopback: bool) -> None:
        self._loopback = loopback
        self._inner = DefaultResolver()

    @override
    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[ResolveResult]:
        entries = await self._inner.resolve(host, port, family)
        allowed = [entry for entry in entries if not _forbidden(entry["host"], loopback=self._loopback)]
        if not allowed:
            raise OSError(None, f"{host} has no address that may be asked for images")
        return allowed

    @override
    async def close(self) -> None:
        await self._inner.close()

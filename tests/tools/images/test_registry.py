from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from tools.images.recipe import DEFAULT_REPOSITORY, ImageError, Recipe
from tools.images.registry import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = Recipe("router", Path(), "d" * 12, "a" * 12)


class Handler(BaseHTTPRequestHandler):
    status = 200
    asked: list[tuple[str, str]]

    def do_HEAD(self) -> None:
        type(self).asked.append((self.path, self.headers["Accept"]))
        self.send_response(self.status)
        self.send_header("Docker-Content-Digest", "sha256:1234")
        self.end_headers()

    @override
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    handler = type("Answer", (Handler,), {"asked": []})
    with HTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"127.0.0.1:{running.server_port}", handler
        running.shutdown()
        thread.join()


@pytest.mark.parametrize(("status", "expected"), [(200, "sha256:1234"), (404, None), (401, ""), (403, "")], ids=str)
def test_digest(server: tuple[str, type[Handler]], status: int, expected: str | None) -> None:
    address, handler = server
    handler.status = status
    assert registry(f"{address}/me").digest(IMAGE) == expected
    path, accepted = handler.asked[0]
    assert path == f"/v2/me/epd-router/manifests/{'a' * 12}"
    assert "application/vnd.oci.image.manifest.v1+json" in accepted


def test_a_broken_registry_is_reported(server: tuple[str, type[Handler]]) -> None:
    address, handler = server
    handler.status = 500
    with pytest.raises(ImageError, match="500"):
        registry(address).digest(IMAGE)


def test_no_registry_names_the_way_out() -> None:
    with pytest.raises(ImageError, match=r"does not answer.*is IMAGE_REPO right"):
        registry("http://127.0.0.1:1").digest(IMAGE)


@pytest.mark.parametrize(
    ("repository", "host", "tls", "local"),
    [
        (DEFAULT_REPOSITORY, DEFAULT_REPOSITORY, False, True),
        ("ghcr.io/me/images", "ghcr.io", True, False),
        ("https://example.org:5000/", "example.org:5000", True, False),
        ("http://example.org:5000", "example.org:5000", False, False),
        ("localhost:5000", "localhost:5000", False, True),
    ],
)
def test_registry(repository: str, host: str, tls: bool, local: bool) -> None:
    actual = registry(repository)
    assert (actual.host, actual.tls, actual.local) == (host, tls, local)
    assert not actual.repository.endswith("/")
    assert "://" not in actual.repository


@pytest.mark.parametrize("repository", ["ftp://example.org", "Example.org/me", "example.org/me@sha256:1", "/me", ""])
def test_registry_refuses(repository: str) -> None:
    with pytest.raises(ImageError, match="must be host"):
        registry(repository)


def test_registry_refuses_a_tag() -> None:
    with pytest.raises(ImageError, match="must not end in a tag"):
        registry("ghcr.io/me:latest")

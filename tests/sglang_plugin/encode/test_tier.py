"""A real encoder and a real language server without a tower, against one server with its own tower."""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image, ImageDraw

from tests.support import sglang
from tests.support.ports import HOST, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
BACKEND = ("--encoder-transfer-backend", "zmq_to_tokenizer")


def picture(number: int) -> str:
    """A picture of its own size and content, as a data URL."""
    width, height = 120 + 37 * (number % 7), 100 + 23 * (number % 11)
    drawn = Image.new("RGB", (width, height), "white")
    side = 20 + number
    ImageDraw.Draw(drawn).ellipse((10, 10, 10 + side, 10 + side), fill=(7 * number % 256, 255 - 5 * number, 90))
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def chat(server: sglang.Server, parts: Sequence[str]) -> tuple[str, list[float], int]:
    """The greedy answer to texts and pictures, its log-probabilities, and the tokens of the prompt."""
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": part}} if "://" in part or part.startswith("data:") else
        {"type": "text", "text": part}
        for part in parts
    ]  # fmt: skip
    body = {
        "model": "any", "messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0,
        "logprobs": True,
    }  # fmt: skip
    answer = server.post("/v1/chat/completions", body)
    (choice,) = answer["choices"]
    logprobs = [each["logprob"] for each in choice["logprobs"]["content"]]
    return choice["message"]["content"], logprobs, answer["usage"]["prompt_tokens"]


def refused(server: sglang.Server, *parts: str) -> tuple[int, str]:
    """Status and message of a request that fails."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        chat(server, parts)
    return caught.value.code, caught.value.read().decode()


class Tier:
    """One encoder and one language server."""

    def __init__(self, encoder: sglang.Server, language: sglang.Server, directory: int) -> None:
        self.encoder, self.language, self.directory = encoder, language, directory

    def list_encoder(self, url: str, *, there: bool) -> None:
        """Register an encoder with the language server, or strike it, as the registrar does."""
        path = "register_encoder_url" if there else "unregister_encoder_url"
        request = urllib.request.Request(
            f"http://{HOST}:{self.directory}/{path}",
            json.dumps({"url": url}).encode(),
            {"content-type": "application/json"},
            method="POST" if there else "DELETE",
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.encoder.port}"


@pytest.fixture(scope="module")
def tier(
    engine_python: Path, plugin_path: Path, random_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tier]:
    folder, directory = tmp_path_factory.mktemp("tier"), free_port()
    flags = {
        "encoder": ("--encoder-only", *BACKEND),
        "language": ("--language-only", *BACKEND, "--encoder-bootstrap-port", str(directory)),
    }
    with ThreadPoolExecutor(2) as pool:
        starts = [
            pool.submit(
                sglang.Server.start, engine_python, plugin_path, random_model, folder / f"{name}.log", *own, seconds=600
            )
            for name, own in flags.items()
        ]
        servers = [start.result() for start in starts if start.exception() is None]
    try:
        encoder, language = [start.result() for start in starts]
        tier = Tier(encoder, language, directory)
        tier.list_encoder(tier.url, there=True)
        yield tier
    finally:
        for server in servers:
            server.stop()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_from_an_encoder_answer_like_rows_of_ones_own(server: sglang.Server, tier: Tier, count: int) -> None:
    """Log-probabilities are equal bit for bit, so the rows are, too; questions before, behind and between pictures."""
    for start in range(3):
        pictures = [picture(10 * count + start + i) for i in range(count)]
        parts = [*pictures[:start], "What is in this picture?", *pictures[start:]]
        server.flush()
        tier.language.flush()
        assert chat(tier.language, parts) == chat(server, parts)


def test_a_text_needs_no_encoder(server: sglang.Server, tier: Tier) -> None:
    server.flush()
    tier.language.flush()
    assert chat(tier.language, ["What is this?"]) == chat(server, ["What is this?"])


def test_a_picture_that_is_none_is_the_clients_mistake(tier: Tier) -> None:
    status, message = refused(tier.language, "data:image/png;base64,aGVsbG8=", "What is this?")
    assert status == 400
    assert "Could not decode image" in message


def test_without_an_encoder_the_server_is_unavailable(tier: Tier) -> None:
    tier.list_encoder(tier.url, there=False)
    try:
        status, message = refused(tier.language, picture(1), "What is this?")
        assert (status, "No vision encoder is registered" in message) == (503, True)
    finally:
        tier.list_encoder(tier.url, there=True)
    assert chat(tier.language, [picture(1), "What is this?"])[2] > 10


def test_an_encoder_that_is_gone_is_not_the_clients_mistake(tier: Tier) -> None:
    """Last: it ends the encoder."""
    tier.encoder.stop()
    status, _ = refused(tier.language, picture(2), "What is this?")
    assert status in {502, 503}
    assert chat(tier.language, ["What is this?"])[0] is not None

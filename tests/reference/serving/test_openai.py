"""The official client, unchanged, against one server; `test_router` has the same through the router."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from epd_workers.reference.model.tokenizer import Tokenizer
from tests.support.reference.serving import SMALL_PICTURE, data_url, png

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.reference.serving import Fleet

MODEL = "reference"


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[openai.AsyncOpenAI]:
    server = await fleet.start("aggregated")
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made
    await server.idle()


@contextlib.asynccontextmanager
async def picture_site() -> AsyncIterator[str]:
    async def picture(_request: web.Request) -> web.Response:
        return web.Response(body=png(), content_type="image/png")

    app = web.Application()
    app.router.add_get("/red.png", picture)
    async with TestServer(app) as server:
        yield str(server.make_url("/red.png"))


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]


async def test_images_by_data_and_by_http_url_are_the_same(client: openai.AsyncOpenAI) -> None:
    async with picture_site() as url:
        answers = [
            await client.chat.completions.create(
                model=MODEL,
                temperature=0,
                max_tokens=8,
                messages=[
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "What is this?"},
                            {"type": "image_url", "image_url": {"url": address, "detail": "low"}},
                        ],
                    }
                ],
            )
            for address in (data_url(), url)
        ]
    first, second = answers
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.usage is not None
    text = Tokenizer.default().encode("What is this?")
    assert first.usage.prompt_tokens == len(["<bos>", "<user>", *text, "<eos>", "<assistant>"]) + SMALL_PICTURE


async def test_streaming_with_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        max_completion_tokens=7,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason in {"length", "stop"}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens <= 7


async def test_choices_and_logprobs(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        n=3,
        seed=5,
        max_tokens=5,
        logprobs=True,
        top_logprobs=2,
        stop=["zzz"],
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs is not None
        content = choice.logprobs.content
        assert content is not None
        assert (
            bytes(byte for entry in content for byte in entry.bytes or []).decode("utf-8", "replace")
            == choice.message.content
        )
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in content)


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=4, seed=2, logprobs=1)
    assert len(answer.choices) == 2
    stream = await client.completions.create(model=MODEL, prompt="a", max_tokens=4, seed=2, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == answer.choices[0].text
    assert answer.choices[0].logprobs is not None
    pieces = answer.choices[0].logprobs.tokens
    assert pieces is not None
    assert answer.choices[0].logprobs.text_offset == [sum(map(len, pieces[:n])) for n in range(4)]


async def test_errors_have_their_classes(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="x", messages=[{"role": "user", "content": "hi"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 999}])
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("field", "given"), [("logit_bias", {"65": 100}), ("regex", "a+"), ("json_schema", "{}"), ("functions", [{}])]
)
async def test_what_would_steer_the_answer_is_refused_not_ignored(
    client: openai.AsyncOpenAI, field: str, given: object
) -> None:
    with pytest.raises(openai.BadRequestError, match=f"{field} cannot be honoured"):
        await client.completions.create(model=MODEL, prompt="hi", extra_body={field: given})
    await client.completions.create(model=MODEL, prompt="hi", max_tokens=1, extra_body={field: None})


async def test_more_answers_than_a_server_holds_are_not_an_overload(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="split it"):
        await client.completions.create(model=MODEL, prompt=["hi"] * 100, max_tokens=1)


async def test_a_stream_that_is_left_frees_its_place(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        max_tokens=150,
        extra_body={"ignore_eos": True},
    )
    async for _chunk in stream:
        break
    await stream.close()

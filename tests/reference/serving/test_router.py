"""The real router in PD mode in front of real servers, asked by the official client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import openai
import pytest

from bench.epd.fleet import SMG
from tests.support.polling import eventually
from tests.support.ports import HOST, free_ports
from tests.support.reference.serving import CHAT, Fleet, Running, chat, data_url, with_images

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MODEL = "reference"
ROOMY = ("--context-length", "4096", "--max-total-tokens", "16384")
LONG = chat("go on", max_tokens=4000, ignore_eos=True, temperature=1, seed=0, stream=True)


@dataclass
class Routed:
    """A router with one encoder, two prefills and one decode."""

    fleet: Fleet
    url: str
    client: openai.AsyncOpenAI
    alone: Running
    prefills: list[Running]
    decode: Running
    encoder: Running

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        async with self.fleet.session.post(self.url + path, json=body) as answer:
            return answer.status, await answer.json()

    async def works(self) -> None:
        await self.fleet.idle()
        status, _ = await self.post(CHAT, chat("still there?"))
        assert status == 200
        await self.fleet.idle()


async def add_workers(fleet: Fleet, url: str, servers: list[Running]) -> None:
    for server in servers:
        body: dict[str, Any] = {"url": server.url, "worker_type": server.role, "pairing_protocol": "k"}
        if server.role == "prefill":
            body["bootstrap_port"] = server.server.ports.bootstrap
        async with fleet.session.post(f"{url}/workers", json=body) as answer:
            assert answer.status == 202, await answer.text()


async def healthy(fleet: Fleet, url: str, count: int) -> None:
    async def counted() -> bool:
        async with fleet.session.get(f"{url}/readiness") as answer:
            return bool((await answer.json()).get("healthy_workers") == count)

    await eventually(counted, 40, every=0.1)


@pytest.fixture
async def routed(fleet: Fleet, tmp_path: Path) -> AsyncIterator[Routed]:
    port, metrics = free_ports(2)
    flags = ["--pd-disaggregation", "--host", HOST, "--port", str(port), "--prometheus-port", str(metrics)]
    flags += ["--prefill-policy", "round_robin", "--decode-policy", "round_robin", "--disable-circuit-breaker"]
    flags += ["--worker-startup-check-interval", "1", "--retry-max-retries", "3"]
    flags += ["--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1"]
    with (tmp_path / "router.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(SMG, "launch", *flags, stdout=log, stderr=log)
    url = f"http://{HOST}:{port}"
    try:
        prefills = [await fleet.start("prefill", *ROOMY) for _ in range(2)]
        decode, encoder = await fleet.start("decode", *ROOMY), await fleet.start("encode")
        alone = await fleet.start("aggregated", *ROOMY)
        for prefill in prefills:
            await fleet.register(prefill, encoder)

        async def listening() -> bool:
            with contextlib.suppress(OSError):
                async with fleet.session.get(f"{url}/health") as answer:
                    return answer.status == 200
            return False

        await eventually(listening, 40, every=0.1)
        await add_workers(fleet, url, [*prefills, decode])
        await healthy(fleet, url, 3)
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            yield Routed(fleet, url, client, alone, prefills, decode, encoder)
    finally:
        process.kill()
        await process.wait()


async def test_the_router_and_the_official_client(routed: Routed) -> None:
    """One router start serves all these, since it costs seconds."""
    await images_and_choices(routed)
    await streams(routed)
    await native_logprobs(routed)
    await salts(routed)
    await errors(routed)
    await many(routed)
    await client_leaves(routed)
    await routed.fleet.idle()


async def images_and_choices(routed: Routed) -> None:
    body = chat(with_images("what?", data_url("red"), data_url("blue")), logprobs=True, top_logprobs=2)
    for n in (1, 2):
        fields = body | {"n": n, "seed": 3, "temperature": 1}
        answer = await routed.client.chat.completions.create(**fields, extra_headers={"X-Request-ID": f"images-{n}"})
        expected = (await routed.alone.post(CHAT, fields)).body["choices"]
        assert [choice.message.content for choice in answer.choices] == [c["message"]["content"] for c in expected]
        assert answer.choices[0].logprobs is not None
        assert [leg["role"] for leg in answer.model_extra["epd"]["legs"]] == ["prefill"] * n + ["decode"] * n
        for server in (routed.decode, routed.encoder):
            assert (await server.get(f"/v1/requests/images-{n}")).status == 200


async def streams(routed: Routed) -> None:
    body = chat("count", seed=1, temperature=1, stream=True, stream_options={"include_usage": True}, n=2)
    texts = ["", ""]
    usage = None
    async for chunk in await routed.client.chat.completions.create(**body):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    expected = (await routed.alone.post(CHAT, body | {"stream": False, "stream_options": None})).body
    assert texts == [choice["message"]["content"] for choice in expected["choices"]]
    assert usage is not None
    assert usage.completion_tokens == expected["usage"]["completion_tokens"]
    completion = await routed.client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=4, seed=2)
    assert len(completion.choices) == 2


async def native_logprobs(routed: Routed) -> None:
    sampling = {"max_new_tokens": 4, "temperature": 0}
    body = {"text": "hello", "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
    status, answer = await routed.post("/generate", body)
    expected = (await routed.alone.post("/generate", body)).body
    assert status == 200
    assert answer["text"] == expected["text"]
    for name in ("input_token_logprobs", "output_token_logprobs"):
        reported, computed = answer["meta_info"][name], expected["meta_info"][name]
        assert [entry[1] for entry in reported] == [entry[1] for entry in computed]
        # The router reads and writes the lists it joins, at the cost of a last bit.
        assert [entry[0] or 0 for entry in reported] == pytest.approx([entry[0] or 0 for entry in computed])


async def salts(routed: Routed) -> None:
    """The router passes on whom a request may share with, to both halves and on every route."""
    bodies: dict[str, dict[str, Any]] = {
        CHAT: chat("whoever begins like this shares a page or two"),
        "/v1/completions": {"model": MODEL, "prompt": "another beginning that is long enough", "max_tokens": 2},
        "/generate": {"text": "a third beginning, of several pages", "sampling_params": {"max_new_tokens": 2}},
    }
    for path, body in bodies.items():
        for field in ("cache_salt", "extra_key"):
            # Each salt is new to both prefill servers, which take turns.
            for salt in ("one", "other"):
                answers = [await routed.post(path, body | {field: salt}) for _ in range(4)]
                tokens = [cached_tokens(answer) for status, answer in answers if status == 200]
                assert tokens[:2] == [0, 0]
                assert 0 < tokens[2] == tokens[3]


def cached_tokens(answer: dict[str, Any]) -> int:
    usage = answer["meta_info"] if "meta_info" in answer else answer["usage"]["prompt_tokens_details"]
    tokens: int = usage["cached_tokens"]
    return tokens


async def errors(routed: Routed) -> None:
    for fields in (chat("x" * 5000), chat(with_images("?", "http://127.0.0.1:1/x.png"))):
        with pytest.raises(openai.BadRequestError):
            await routed.client.chat.completions.create(**fields)
    with pytest.raises(openai.APIStatusError):
        await routed.client.chat.completions.create(**chat("x", model="other"))


async def many(routed: Routed) -> None:
    bodies = [chat(f"number {number}", seed=number, temperature=1) for number in range(12)]
    answers = await asyncio.gather(*(routed.post(CHAT, body) for body in bodies))
    for body, (status, answer) in zip(bodies, answers, strict=True):
        assert status == 200, answer
        assert answer["choices"] == (await routed.alone.post(CHAT, body)).body["choices"]


async def client_leaves(routed: Routed) -> None:
    async with routed.fleet.session.post(routed.url + CHAT, json=LONG) as answer:
        assert answer.status == 200
        await answer.content.readany()
    await routed.works()


@pytest.mark.nightly
async def test_servers_that_die_behind_the_router(routed: Routed) -> None:
    async with routed.fleet.session.post(routed.url + CHAT, json=LONG) as answer:
        await answer.content.readany()
        await routed.prefills[0].server.stop(0)
        routed.fleet.running.remove(routed.prefills[0])
        # A decode that has its pages needs its prefill no more.
        text = (await answer.text()).splitlines()
    assert text[-2] == "data: [DONE]"
    assert "error" not in json.loads(text[-4].removeprefix("data: "))
    await healthy(routed.fleet, routed.url, 2)
    for _ in range(3):
        status, _ = await routed.post(CHAT, chat("x"))
        assert status == 200
    await routed.encoder.server.stop(0)
    routed.fleet.running.remove(routed.encoder)
    status, body = await routed.post(CHAT, chat(with_images("?", data_url())))
    assert (status, body["error"]["code"]) == (503, "prefill_unavailable")
    await routed.works()


@pytest.mark.nightly
async def test_a_decode_that_dies_behind_the_router(routed: Routed) -> None:
    async with routed.fleet.session.post(routed.url + CHAT, json=LONG) as answer:
        await answer.content.readany()
        await routed.decode.server.stop(0)
        routed.fleet.running.remove(routed.decode)
        text = await answer.text()
    assert "error" in text
    successor = await routed.fleet.start("decode", *ROOMY)
    await add_workers(routed.fleet, routed.url, [successor])
    await healthy(routed.fleet, routed.url, 3)
    routed.decode = successor
    await routed.works()

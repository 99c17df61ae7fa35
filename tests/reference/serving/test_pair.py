from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.reference.serving import (
    CHAT,
    SMALL_PICTURE,
    Fleet,
    Reply,
    Running,
    alike,
    chat,
    data_url,
    with_images,
)

if TYPE_CHECKING:
    from pathlib import Path

PAGE = 4


async def trio(fleet: Fleet, *flags: str) -> tuple[Running, Running, Running]:
    alone = await fleet.start("aggregated", *flags)
    return alone, await fleet.start("prefill", "--vision", "local", *flags), await fleet.start("decode", *flags)


def answer_of(reply: Reply) -> Any:
    """What an answer says, without its names and times, and without what happened to be cached."""
    assert reply.status == 200, reply.body
    return reply.body["choices"], bare(reply.body["usage"])


def bare(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


def test_a_pair_says_what_one_server_says_around_every_page_boundary(checkpoint: Path) -> None:
    sampled = st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0, 0.7, 1.3]),
            "seed": st.integers(0, 9),
            "max_tokens": st.integers(1, 2 * PAGE + 1),
            "logprobs": st.booleans(),
            "repetition_penalty": st.sampled_from([1.0, 1.3]),
            "stop": st.sampled_from([None, "e", ["qu", "t"]]),
        }
    )
    # Three markers frame a chat of one message, so lengths 0..13 put the prompt's end at every place in a page.
    texts = st.text(st.characters(codec="utf-8"), max_size=3) | st.integers(0, 3 * PAGE + 1).map(
        lambda n: "abcdefghijklmnop"[:n]
    )
    colors = st.lists(st.sampled_from(["red", "blue"]), max_size=2)

    async def check(runner_loop: list[Any], text: str, images: list[str], fields: dict[str, Any]) -> None:
        fleet, alone, prefill, decode = runner_loop
        body = chat(with_images(text, *map(data_url, images)), **fields)
        expected = await alone.post(CHAT, body)
        first, second = await fleet.pair(prefill, decode, body)
        assert alike(answer_of(second), answer_of(expected))
        assert first.status == 200
        await fleet.idle()

    with asyncio.Runner() as runner:
        made: list[Any] = []
        exits = contextlib.AsyncExitStack()

        async def setup() -> None:
            session = await exits.enter_async_context(aiohttp.ClientSession())
            fleet = Fleet(session, exits, checkpoint)
            made.extend([fleet, *await trio(fleet)])

        runner.run(setup())

        @settings(max_examples=60)
        @given(texts, colors, sampled)
        def same(text: str, images: list[str], fields: dict[str, Any]) -> None:
            runner.run(check(made, text, images, fields))

        try:
            same()
        finally:
            runner.run(exits.aclose())


@pytest.mark.parametrize("preset", ["0.5.23", "dsv41-37ae292e"])
@pytest.mark.parametrize("dtype", ["fp4", "bf16"])
async def test_replaying_pairs_say_what_one_replaying_server_says(fleet: Fleet, preset: str, dtype: str) -> None:
    flags = ("--decoder-replay", "on", "--decoder-replay-preset", preset, "--kv-cache-dtype", dtype)
    alone, prefill, decode = await trio(fleet, *flags)
    for text in ("long " * 30, "long " * 31 + "and then short"):
        body = chat(text, logprobs=True, top_logprobs=2)
        _, answer = await fleet.pair(prefill, decode, body)
        assert alike(answer_of(answer), answer_of(await alone.post(CHAT, body)))
    for server, active in ((alone, True), (prefill, True), (decode, False)):
        half = (await server.get("/server_info")).body["replay"]["decoder"]
        assert half["active"] is active
        assert (half["reason"], half["preset"]) == (("", preset) if active else ("TurnedOff", ""))


async def test_a_pair_tells_how_much_of_a_prompt_was_cached(fleet: Fleet) -> None:
    prefill, decode = await fleet.start("prefill"), await fleet.start("decode")
    body = chat("the same long beginning of a prompt " * 3)
    reported = [(await fleet.pair(prefill, decode, body))[1].body["usage"] for _ in range(2)]
    length = reported[0]["prompt_tokens"]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in reported] == [0, (length - 1) // PAGE * PAGE]
    native = {"text": "abc" * 30, "sampling_params": {"max_new_tokens": 1}}
    first, again = [(await fleet.pair(prefill, decode, native, "/generate"))[1].body for _ in range(2)]
    assert first["meta_info"]["cached_tokens"] == 0 < again["meta_info"]["cached_tokens"]


async def test_images_go_through_encoders(fleet: Fleet) -> None:
    alone, prefill = await fleet.start("aggregated"), await fleet.start("prefill")
    decode = await fleet.start("decode")
    encoders = [await fleet.start("encode"), await fleet.start("encode")]
    await fleet.register(prefill, *encoders)
    body = chat(with_images("?", data_url("red"), data_url("blue"), data_url("green")))
    _, answer = await fleet.pair(prefill, decode, body)
    assert alike(answer_of(answer), answer_of(await alone.post(CHAT, body)))
    legs = answer.body["epd"]["legs"]
    assert [leg["role"] for leg in legs] == ["prefill", "decode"]
    assert [image["tokens"] for image in legs[0]["images"]] == [SMALL_PICTURE] * 3
    for encoder in encoders:
        assert len((await encoder.get("/v1/requests")).body["requests"]) == 1
    await fleet.idle()


async def test_every_stage_can_be_asked_for_by_the_callers_name(fleet: Fleet) -> None:
    prefill, decode = await fleet.start("prefill"), await fleet.start("decode")
    encoder = await fleet.start("encode")
    await fleet.register(prefill, encoder)
    body = chat(with_images("?", data_url())) | fleet.meeting(prefill)
    await asyncio.gather(*(side.post(CHAT, body, X_Request_ID="mine") for side in (prefill, decode)))
    stages = {}
    for server in (prefill, decode, encoder):
        for name in ("mine", f"room-{body['bootstrap_room']}")[: 1 if server is encoder else 2]:
            (record,) = (await server.get(f"/v1/requests/{name}")).body["requests"]
            assert record["status"] == 200
            stages[server.role] = set(record["legs"][-1]["stages_ms"])
    assert stages["encode"] == {"encode", "transfer"}
    assert stages["prefill"] == {"encode", "peer_wait", "prefill", "transfer", "first_token"}
    assert stages["decode"] == {"route", "peer_wait", "transfer", "first_token", "decode"}
    assert (await decode.get("/v1/requests/unknown")).status == 404


@pytest.mark.parametrize("prompt", [["abc", "defgh"], "abcd", [[1, 2, 3], [4, 5]], [1, 2, 3]])
@pytest.mark.parametrize("n", [1, 2])
async def test_lists_of_rooms(fleet: Fleet, prompt: Any, n: int) -> None:
    alone, prefill, decode = await trio(fleet)
    body = {"model": "reference", "prompt": prompt, "n": n, "seed": 4, "max_tokens": 5, "logprobs": 2}
    count = n * (2 if (isinstance(prompt[0], str) and isinstance(prompt, list)) or isinstance(prompt[0], list) else 1)
    _, answer = await fleet.pair(prefill, decode, body, "/v1/completions", count if count > 1 else None)
    assert alike(answer_of(answer), answer_of(await alone.post("/v1/completions", body)))
    assert len({choice["text"] for choice in answer.body["choices"]}) == count
    await fleet.idle()


async def events(server: Running, path: str, body: dict[str, Any]) -> list[Any]:
    async with server.session.post(server.url + path, json=body | {"stream": True}) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        lines = [line for line in (await answer.text()).split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def test_a_stream_says_what_the_document_says(fleet: Fleet) -> None:
    alone, prefill, decode = await trio(fleet)
    body = chat("count", n=2, seed=3, temperature=1, max_tokens=9, stream_options={"include_usage": True})
    expected = await alone.post(CHAT, body)
    meeting = fleet.meeting(prefill, 2)
    first, second = await asyncio.gather(events(prefill, CHAT, body | meeting), events(decode, CHAT, body | meeting))
    texts = ["", ""]
    finishes: dict[int, str] = {}
    for event in second:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
            if choice["finish_reason"]:
                finishes[choice["index"]] = choice["finish_reason"]
    assert texts == [choice["message"]["content"] for choice in expected.body["choices"]]
    assert finishes == {0: "length", 1: "length"}
    assert bare(second[-1]["usage"]) == bare(expected.body["usage"])
    assert all(event["usage"] is None for event in second[:-1])
    assert first[-1]["choices"] == []
    await fleet.idle()


async def test_generate_reports_both_halves_of_the_logprobs(fleet: Fleet) -> None:
    alone, prefill, decode = await trio(fleet)
    sampling = {"max_new_tokens": 6, "temperature": 0}
    body = {"text": "hello", "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
    expected = (await alone.post("/generate", body)).body
    first, second = await fleet.pair(prefill, decode, body | {"model": "unknown"}, "/generate")
    joined = first.body["meta_info"]["input_token_logprobs"] + second.body["meta_info"]["input_token_logprobs"]
    assert alike(joined, expected["meta_info"]["input_token_logprobs"])
    assert len(joined) == expected["meta_info"]["prompt_tokens"] == 6
    for name in ("output_token_logprobs", "finish_reason", "prompt_tokens", "completion_tokens"):
        assert alike(second.body["meta_info"][name], expected["meta_info"][name])
    assert second.body["text"] == expected["text"]
    streamed = await events(alone, "/generate", body)
    assert streamed[-1]["text"] == expected["text"]


async def test_generate_takes_images(fleet: Fleet) -> None:
    alone, prefill, decode = await trio(fleet)
    body = {"text": "a<image>b", "image_data": data_url(), "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
    _, answer = await fleet.pair(prefill, decode, body, "/generate")
    assert answer.body["text"] == (await alone.post("/generate", body)).body["text"]
    same = {"input_ids": [256, 97, 258, 98], "image_data": [data_url()], "sampling_params": body["sampling_params"]}
    assert (await alone.post("/generate", same)).body["text"] == answer.body["text"]


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_fake_peer_needs_no_peer(fleet: Fleet, role: str) -> None:
    server = await fleet.start(role)
    fake = {"bootstrap_host": "2.2.2.2", "bootstrap_port": None, "bootstrap_room": 0}
    answer = await server.post(CHAT, chat("health", max_tokens=3) | fake)
    assert answer.status == 200
    assert answer.body["usage"]["completion_tokens"] == (1 if role == "prefill" else 3)
    assert (await server.get("/health_generate")).status == 200
    await fleet.idle()


async def test_a_null_port_means_the_default_one(fleet: Fleet) -> None:
    prefill = await fleet.start("prefill")
    decode = await fleet.start("decode", "--bootstrap-port", str(prefill.server.ports.bootstrap))
    body = chat("hello") | fleet.meeting(prefill) | {"bootstrap_port": None}
    answers = await asyncio.gather(prefill.post(CHAT, body), decode.post(CHAT, body))
    assert [answer.status for answer in answers] == [200, 200]


async def test_many_pairs_at_once_do_not_mix(fleet: Fleet) -> None:
    alone, prefill, decode = await trio(fleet)
    bodies = [chat(f"prompt {number}" * (number % 4 + 1), seed=number, temperature=1) for number in range(16)]
    answers = await asyncio.gather(*(fleet.pair(prefill, decode, body) for body in bodies))
    for body, (_, answer) in zip(bodies, answers, strict=True):
        assert alike(answer_of(answer), answer_of(await alone.post(CHAT, body)))
    await fleet.idle()

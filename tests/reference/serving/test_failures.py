from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from epd_workers.reference.transfer.room import Room
from tests.support.ports import HOST
from tests.support.reference import checkpoints
from tests.support.reference.serving import AT_ONCE_SECONDS, CHAT, SHORT, chat, data_url, png, with_images

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epd_workers.reference.engine.job import Piece
    from tests.support.reference.serving import Fleet, Running

ROOMY = ("--context-length", "4096", "--max-total-tokens", "16384")
LONG = chat("go on", max_tokens=4000, ignore_eos=True, temperature=1, seed=0)


async def works(fleet: Fleet, prefill: Running, decode: Running) -> None:
    """Nothing is stuck, and the next request is answered."""
    await fleet.idle()
    _, answer = await fleet.pair(prefill, decode, chat("still there?"))
    assert answer.status == 200
    await fleet.idle()


async def until_busy(*servers: Running) -> None:
    async with asyncio.timeout(AT_ONCE_SECONDS):
        while not all([await server.busy() for server in servers]):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_decode_whose_prefill_is_not_there(fleet: Fleet) -> None:
    decode = await fleet.start("decode", *SHORT)
    started = time.monotonic()
    fields = {"bootstrap_host": HOST, "bootstrap_port": 1, "bootstrap_room": 5}
    answer = await decode.post(CHAT, chat("x") | fields)
    assert (answer.status, answer.code) == (500, "transfer_failed")
    assert time.monotonic() - started < AT_ONCE_SECONDS
    await decode.idle()


@pytest.mark.parametrize("alone", ["prefill", "decode"])
async def test_half_a_request_fails_in_bounded_time(fleet: Fleet, alone: str) -> None:
    prefill, decode = await fleet.start("prefill", *SHORT), await fleet.start("decode", *SHORT)
    server = prefill if alone == "prefill" else decode
    answer = await server.post(CHAT, chat("x") | fleet.meeting(prefill))
    assert (answer.status, answer.code) == (500, "transfer_failed")
    assert re.search(r"within 0\.\d+ s", answer.message)
    await works(fleet, prefill, decode)


async def test_a_bad_half_fails_the_other_at_once(fleet: Fleet) -> None:
    prefill, decode = await fleet.start("prefill", "--vision", "local"), await fleet.start("decode")
    started = time.monotonic()
    first, second = await fleet.pair(prefill, decode, chat(with_images("?", "data:image/png;base64,AAAA")))
    assert (first.status, first.code) == (400, "invalid_image"), first.message
    assert (second.status, second.code, second.message) == (first.status, first.code, first.message)
    assert time.monotonic() - started < AT_ONCE_SECONDS
    await works(fleet, prefill, decode)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--page-size", "8"], ["page_size is 8 here and 4 at the peer", "window_page_bytes is", "kv_layout is"]),
        (["--layout-key", "other"], ["kv_layout is"]),
        (["--kv-cache-dtype", "bf16"], ["kv_cache_dtype is 'bf16' here and 'fp4' at the peer", "page_bytes is"]),
        (["--model-path", "OTHER"], ["kv_layout is"]),
    ],
)
async def test_caches_that_do_not_fit_fail_the_request_and_not_the_server(
    fleet: Fleet, tmp_path: Path, flags: list[str], words: list[str]
) -> None:
    flags = [str(checkpoints.write(tmp_path, seed=1)) if flag == "OTHER" else flag for flag in flags]
    prefill, decode, good = (
        await fleet.start("prefill", *SHORT),
        await fleet.start("decode", *flags),
        await fleet.start("decode"),
    )
    first, second = await fleet.pair(prefill, decode, chat("x"))
    assert (second.status, second.code) == (500, "transfer_failed")
    assert all(word in second.message for word in words), second.message
    assert first.status == 500
    assert (await decode.get("/health_generate")).status == 200
    await works(fleet, prefill, good)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("page", lambda _: [], "pieces missing: page 0, page 1"),
        ("window", lambda _: [], "pieces missing: window"),
        ("state", lambda _: [], "pieces missing: state 0"),
        (
            "page",
            lambda piece: [piece, replace(piece, index=40 + piece.index)],
            "pieces not asked for: page 40, page 41",
        ),
        ("window", lambda piece: [piece, piece], "came twice"),
        ("page", lambda piece: [replace(piece, data=piece.data[1:])], "bytes: this server's have"),
    ],
)
async def test_pieces_that_are_wrong_fail_their_request_alone(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, kind: str, change: Callable[[Piece], list[Piece]], words: str
) -> None:
    prefill, decode = await fleet.start("prefill"), await fleet.start("decode")
    ids = [256, 260, *range(97, 110), 257, 261]  # an odd number, so that there is a state
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
    post = Room.post_piece

    def other(room: Room, piece: Piece) -> None:
        for one in change(piece) if piece.kind == kind else [piece]:
            post(room, one)

    with monkeypatch.context() as patch:
        patch.setattr(Room, "post_piece", other)
        _, answer = await fleet.pair(prefill, decode, body, "/generate")
    assert (answer.status, answer.code) == (500, "transfer_failed")
    assert words in answer.message
    assert [reply.status for reply in await fleet.pair(prefill, decode, body, "/generate")] == [200, 200]
    await works(fleet, prefill, decode)


async def test_a_room_can_be_used_once_at_a_time(fleet: Fleet) -> None:
    prefill, decode = await fleet.start("prefill", *SHORT), await fleet.start("decode")
    body = chat("x") | fleet.meeting(prefill)
    waiting = [asyncio.create_task(server.post(CHAT, body)) for server in (prefill, decode)]
    slow = chat("y") | fleet.meeting(prefill)
    held = asyncio.create_task(prefill.post(CHAT, slow))
    await until_busy(prefill)
    again = await prefill.post(CHAT, slow)
    assert (again.status, again.code) == (400, "duplicate_room")
    assert str(slow["bootstrap_room"]) in again.message
    assert [(await task).status for task in waiting] == [200, 200]
    assert (await held).status == 500
    await works(fleet, prefill, decode)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_room_is_needed(fleet: Fleet, role: str) -> None:
    server = await fleet.start(role)
    answer = await server.post(CHAT, chat("x"))
    assert (answer.status, answer.code) == (400, "missing_bootstrap_room")
    for fields in (
        {"bootstrap_room": 1},
        {"bootstrap_room": [1, 2], "bootstrap_host": HOST},
        {"bootstrap_room": -1, "bootstrap_host": HOST},
        {"bootstrap_room": 1, "bootstrap_host": HOST, "bootstrap_port": 99999},
        {"bootstrap_room": 1, "bootstrap_host": HOST, "n": 2},
        {"bootstrap_room": [1, 1], "bootstrap_host": [HOST] * 2, "n": 2},
        {"bootstrap_room": "one", "bootstrap_host": HOST},
    ):
        assert (await server.post(CHAT, chat("x") | fields)).status == 400, fields
    await server.idle()


async def test_a_client_that_leaves_frees_both_halves(fleet: Fleet) -> None:
    prefill, decode = await fleet.start("prefill", *ROOMY), await fleet.start("decode", *ROOMY)
    for stream in (True, False):
        body = LONG | fleet.meeting(prefill) | {"stream": stream}
        tasks = [asyncio.create_task(server.post(CHAT, body)) for server in (prefill, decode)]
        await until_busy(decode)
        for task in tasks:
            task.cancel()
        left = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(left[1], asyncio.CancelledError)
        await works(fleet, prefill, decode)


async def test_a_client_that_leaves_one_half_frees_the_other(fleet: Fleet) -> None:
    prefill, decode = await fleet.start("prefill"), await fleet.start("decode")
    body = chat("x" * 100) | fleet.meeting(prefill)
    leaving = asyncio.create_task(prefill.post(CHAT, body))
    await until_busy(prefill)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await prefill.idle()
    left = await decode.post(CHAT, body)
    assert left.status == 500
    assert "aborted" in left.message
    await works(fleet, prefill, decode)


async def test_a_prefill_that_dies_fails_the_decode_at_once(fleet: Fleet) -> None:
    prefill, decode, other = await fleet.start("prefill"), await fleet.start("decode"), await fleet.start("prefill")
    body = chat("x") | fleet.meeting(prefill)
    waiting = asyncio.create_task(decode.post(CHAT, body))
    await until_busy(decode)
    started = time.monotonic()
    await prefill.server.stop(0)
    fleet.running.remove(prefill)
    answer = await waiting
    assert (answer.status, answer.code) == (500, "transfer_failed")
    assert time.monotonic() - started < AT_ONCE_SECONDS
    await works(fleet, other, decode)


async def test_a_decode_that_dies_fails_the_prefill_at_once(fleet: Fleet) -> None:
    prefill, other = await fleet.start("prefill", *ROOMY), await fleet.start("decode")
    decode = await fleet.start("decode", *ROOMY)
    body = LONG | fleet.meeting(prefill)
    tasks = [asyncio.create_task(server.post(CHAT, body)) for server in (prefill, decode)]
    await until_busy(decode)
    await decode.server.stop(0)
    fleet.running.remove(decode)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[1], aiohttp.ClientError) or results[1].status >= 500  # type: ignore[union-attr]
    await works(fleet, prefill, other)


async def test_a_prefill_that_restarts_at_its_address_is_found_anew(fleet: Fleet) -> None:
    prefill, decode = await fleet.start("prefill"), await fleet.start("decode")
    await works(fleet, prefill, decode)
    port = str(prefill.server.ports.bootstrap)
    await prefill.server.stop(0)
    fleet.running.remove(prefill)
    again = await fleet.start("prefill", "--bootstrap-port", port)
    await works(fleet, again, decode)


async def test_no_encoder_is_a_clear_503(fleet: Fleet) -> None:
    prefill, decode = await fleet.start("prefill"), await fleet.start("decode")
    first, second = await fleet.pair(prefill, decode, chat(with_images("?", data_url())))
    assert (first.status, first.code) == (503, "no_encoder")
    assert first.headers["Retry-After"] == "1"
    assert "no image encoder is registered" in second.message
    await works(fleet, prefill, decode)


async def test_an_encoder_that_dies_is_replaced_by_another(fleet: Fleet) -> None:
    prefill, decode = await fleet.start("prefill"), await fleet.start("decode")
    dead, alive = await fleet.start("encode"), await fleet.start("encode")
    await fleet.register(prefill, dead, alive)
    await dead.server.stop(0)
    fleet.running.remove(dead)
    for _ in range(3):
        _, answer = await fleet.pair(prefill, decode, chat(with_images("?", data_url(), data_url("blue"))))
        assert answer.status == 200, answer.body
    await alive.server.stop(0)
    fleet.running.remove(alive)
    first, _ = await fleet.pair(prefill, decode, chat(with_images("?", data_url())))
    assert (first.status, first.code) == (503, "no_encoder")
    await works(fleet, prefill, decode)


async def test_vision_off_refuses_images_on_every_half(fleet: Fleet) -> None:
    prefill = await fleet.start("prefill", "--vision", "off")
    decode = await fleet.start("decode", "--vision", "off")
    for answer in await fleet.pair(prefill, decode, chat(with_images("?", data_url()))):
        assert (answer.status, answer.code) == (400, "images_not_supported")
    assert not (await prefill.get("/model_info")).body["has_image_understanding"]
    await works(fleet, prefill, decode)


async def test_an_encoder_says_what_is_wrong(fleet: Fleet) -> None:
    encoder = await fleet.start("encode")
    good: dict[str, Any] = {"req_id": "r", "mm_items": [data_url()], "prefill_host": HOST, "embedding_port": 1}
    for change, status in (
        ({"mm_items": ["file:///etc/passwd"]}, 400),
        ({"mm_items": []}, 400),
        ({"modality": "VIDEO"}, 400),
        ({"prefill_host": "a b"}, 400),
        ({"embedding_port": 0}, 400),
    ):
        answer = await encoder.post("/encode", good | change)
        assert answer.status == status, answer.body
        assert answer.body["status"] == "error"
        assert answer.body["req_id"] == "r"
    assert (await encoder.post("/encode", ["x"])).status == 400
    assert (await encoder.post(CHAT, chat("x"))).status == 404
    assert (await encoder.get("/health_generate")).status == 200
    await encoder.idle()


async def test_overload_is_a_503_and_the_rest_is_served(fleet: Fleet) -> None:
    server = await fleet.start("aggregated", "--max-running-requests", "1", "--max-queued-requests", "2")
    answers = await asyncio.gather(*(server.post(CHAT, chat("x", max_tokens=40)) for _ in range(12)))
    refused = [answer for answer in answers if answer.status != 200]
    assert len(refused) == 9
    assert {(answer.status, answer.code, answer.headers["Retry-After"]) for answer in refused} == {
        (503, "overloaded", "1")
    }
    await server.idle()


async def test_a_draining_server_finishes_but_takes_nothing_new(fleet: Fleet) -> None:
    prefill, decode = await fleet.start("prefill"), await fleet.start("decode")
    body = LONG | fleet.meeting(prefill) | {"max_tokens": 150}
    running = [asyncio.create_task(server.post(CHAT, body)) for server in (prefill, decode)]
    await until_busy(decode)
    stopping = asyncio.create_task(decode.server.stop(10))
    await asyncio.sleep(0)
    for path in ("/ready", "/health"):
        answer = await decode.get(path)
        assert (answer.status, answer.code) == (503, "draining")
    refused = await decode.post(CHAT, chat("x") | fleet.meeting(prefill))
    assert (refused.status, refused.code) == (503, "draining")
    assert [(await task).status for task in running] == [200, 200]
    assert await stopping
    fleet.running.remove(decode)
    await fleet.idle()


async def test_a_refusing_prefill_fails_its_decode_at_once(fleet: Fleet) -> None:
    prefill, decode = await fleet.start("prefill", "--handshake-timeout", "3"), await fleet.start("decode")
    other = await fleet.start("prefill")
    holding = asyncio.create_task(prefill.post(CHAT, chat("x") | fleet.meeting(prefill)))
    await until_busy(prefill)
    stopping = asyncio.create_task(prefill.server.stop(5))
    started = time.monotonic()
    first, second = await fleet.pair(prefill, decode, chat("x"))
    assert (first.status, first.code) == (503, "draining")
    assert (second.status, second.message.endswith("this server is draining and takes no requests")) == (503, True)
    assert time.monotonic() - started < AT_ONCE_SECONDS
    assert (await holding).status == 500
    assert await stopping
    fleet.running.remove(prefill)
    await works(fleet, other, decode)


async def test_a_client_that_stops_reading_is_cut(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epd_workers.reference.serving.reply.SLOW_CLIENT_SECONDS", 0.5)
    server = await fleet.start("aggregated", *ROOMY)
    # Every event of this route has all the log-probabilities so far: soon no buffer on the way holds any more of them.
    sampling = {"max_new_tokens": 4000, "ignore_eos": True}
    lists = {"return_logprob": True, "top_logprobs_num": 20}
    body = json.dumps({"text": "go on", "stream": True, "sampling_params": sampling} | lists).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (HOST, server.server.ports.http))
        await asyncio.get_running_loop().sock_sendall(client, head + body)
        await until_busy(server)
        await server.idle(60)
    (record,) = (await server.get("/v1/requests")).body["requests"]
    assert (record["status"], record["error"]) == (499, "the client went away or stopped reading")


async def test_a_drain_ends_in_time_and_cuts_what_is_left(fleet: Fleet) -> None:
    server = await fleet.start("aggregated", *ROOMY)
    running = asyncio.create_task(server.post(CHAT, LONG))
    await until_busy(server)
    started = time.monotonic()
    assert not await server.server.stop(0.05)
    assert time.monotonic() - started < AT_ONCE_SECONDS
    results = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(results[0], aiohttp.ClientError) or results[0].status == 500  # type: ignore[union-attr]
    fleet.running.remove(server)


async def test_what_cannot_be_used_is_one_clear_error_and_the_server_lives(fleet: Fleet) -> None:
    server = await fleet.start("aggregated")
    for url, words in (
        ("http://127.0.0.1:1/a.png", "the image at 127.0.0.1 cannot be fetched"),
        ("http://169.254.169.254/latest", "link-local"),
        ("file:///etc/passwd", "must begin with data:, http: or https:"),
        ("data:text/plain,hello", "must have the form data:image/png;base64"),
        ("data:image/png;base64,*", "not base64"),
        ("http://", "only http and https with a host"),
        ("http://[", "cannot be read"),
        ("data:image/png;base64," + base64.b64encode(b"no picture at all").decode(), "it is none of them"),
        ("data:image/png;base64," + base64.b64encode(png(size=(10_000, 1))).decode(), "10000"),
    ):
        answer = await server.post(CHAT, chat(with_images("?", url)))
        assert (answer.status, answer.code) == (400, "invalid_image"), url
        assert words in answer.message
    long = await server.post(CHAT, chat("a prompt longer than the context " * 200))
    assert (long.status, long.code) == (400, "context_length_exceeded")
    assert "the context holds 192" in long.message
    assert (await server.post(CHAT, chat(with_images("?", data_url())))).status == 200
    many = await server.post(CHAT, chat(with_images("?", *[data_url()] * 17)))
    assert (many.status, many.message) == (400, "the request has 17 images, at most 16 are accepted")
    await server.idle()

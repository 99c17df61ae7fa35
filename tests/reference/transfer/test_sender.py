from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import TYPE_CHECKING, Any

import pytest

from epd_workers.reference.engine.job import Piece
from epd_workers.reference.transfer import frame as wire
from epd_workers.reference.transfer.errors import DuplicateRoomError, TransferError
from epd_workers.reference.transfer.frame import Frame, FrameKind, FrameLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_workers.reference.transfer.receiver import Received
    from epd_workers.reference.transfer.room import Room
    from tests.reference.transfer.pair import Pair

PAGES = [Piece("page", n, bytes([n]) * 64) for n in range(3)]
PIECES = [*PAGES, Piece("window", 1, bytes(48)), Piece("window", 2, bytes(48)), Piece("state", 0, bytes(16))]
HOST = "127.0.0.1"
LARGE = FrameLimits(meta=1 << 20, body=1 << 20)


async def prefill(pair: Pair, number: int, pieces: Sequence[Piece] = PIECES, delay: float = 0.0) -> Room:
    async with pair.server.open(number) as room:
        await room.connected(pair.timeouts.handshake)
        for piece in pieces:
            await room.guard(asyncio.sleep(delay))
            room.post_piece(piece)
        await room.hand_over({"first": number})
    return room


async def receive(pair: Pair, number: int) -> Received:
    return await pair.receiver().receive(HOST, pair.port, number)


async def settled(pair: Pair) -> None:
    async with asyncio.timeout(2):
        while pair.server.connections or pair.server.waiting_peers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def hello(pair: Pair, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(HOST, pair.port)
    writer.write(wire.pack(Frame(FrameKind.HELLO, {"room": number, "peer": "x", **pair.layout.state()})))
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("first", ["prefill", "decode", "both"])
async def test_pieces_and_handover_arrive_whichever_side_comes_first(pair: Pair, first: str) -> None:
    async def late(name: str) -> None:
        await asyncio.sleep(0 if first in {name, "both"} else 0.1)

    async def send() -> Room:
        await late("prefill")
        return await prefill(pair, 7)

    async def fetch() -> Received:
        await late("decode")
        return await receive(pair, 7)

    sending, fetching = asyncio.create_task(send()), asyncio.create_task(fetch())
    room, received = await sending, await fetching
    assert received.pieces == PIECES
    assert received.meta == {"first": 7, "room": 7, "pieces": 6}
    assert room.peer == "decode-1"
    assert room.sent_bytes == received.size == 3 * 64 + 2 * 48 + 16
    await settled(pair)


async def test_many_rooms_at_once_do_not_mix(pair: Pair) -> None:
    numbers = random.Random(0).sample(range(1 << 62), 20)
    pieces = {
        number: [Piece("page", at, number.to_bytes(8, "big") * 8) for at in range(index % 4)]
        for index, number in enumerate(numbers)
    }
    decodes = [asyncio.create_task(receive(pair, number)) for number in reversed(numbers)]
    await asyncio.gather(*(prefill(pair, number, pieces[number]) for number in numbers))
    for number, decode in zip(reversed(numbers), decodes, strict=True):
        received = await decode
        assert received.pieces == pieces[number]
        assert received.meta["first"] == number
    await settled(pair)


async def test_heartbeats_carry_a_slow_prefill_past_the_silence_bound(pair: Pair) -> None:
    _, received = await asyncio.gather(prefill(pair, 1, PAGES[:2], delay=0.9), receive(pair, 1))
    assert received.pieces == PAGES[:2]


async def test_a_prefill_whose_decode_never_comes_gives_up(pair: Pair) -> None:
    with pytest.raises(TransferError, match=r"no decode server asked for bootstrap_room 5 within 0\.6 s"):
        await prefill(pair, 5)


async def test_a_decode_that_comes_after_a_failure_learns_of_it_at_once(pair: Pair) -> None:
    with pytest.raises(ValueError, match="bad image"):
        async with pair.server.open(5):
            raise ValueError("bad image")
    async with asyncio.timeout(0.3):
        with pytest.raises(TransferError, match="bad image"):
            await receive(pair, 5)
    _, received = await asyncio.gather(prefill(pair, 5), receive(pair, 5))
    assert received.pieces == PIECES


async def test_a_decode_whose_request_never_comes_gives_up(pair: Pair) -> None:
    with pytest.raises(TransferError, match="got no request for bootstrap_room 6"):
        await receive(pair, 6)
    await settled(pair)


@pytest.mark.parametrize("late", [True, False])
async def test_a_refused_request_fails_its_decode_at_once(pair: Pair, late: bool) -> None:
    if late:
        pair.server.refuse(5, RuntimeError("draining"))
    decode = asyncio.create_task(receive(pair, 5))
    await asyncio.sleep(0.05)
    if not late:
        pair.server.refuse(5, RuntimeError("draining"))
    async with asyncio.timeout(0.3):
        with pytest.raises(TransferError, match="draining"):
            await decode
    await settled(pair)


async def test_a_refusal_does_not_touch_a_room_in_use(pair: Pair) -> None:
    task = asyncio.create_task(prefill(pair, 3))
    await asyncio.sleep(0.05)
    pair.server.refuse(3, RuntimeError("duplicate"))
    assert (await receive(pair, 3)).pieces == PIECES
    await task


async def test_a_failing_prefill_tells_the_connected_decode(pair: Pair) -> None:
    async def fail() -> None:
        async with pair.server.open(8) as room:
            await room.connected(1)
            room.post_piece(PAGES[0])
            raise RuntimeError("out of pages")

    results = await asyncio.gather(fail(), receive(pair, 8), return_exceptions=True)
    assert isinstance(results[0], RuntimeError)
    assert "out of pages" in str(results[1])
    assert isinstance(results[1], TransferError)
    await settled(pair)


async def test_an_aborted_prefill_tells_the_connected_decode(pair: Pair) -> None:
    task = asyncio.create_task(prefill(pair, 8, delay=30))
    decode = asyncio.create_task(receive(pair, 8))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(TransferError, match="aborted"):
        await decode
    await settled(pair)


@pytest.mark.parametrize("when", ["computing", "confirming"])
async def test_a_lost_decode_stops_the_prefill_at_once(pair: Pair, when: str) -> None:
    delay = 30 if when == "computing" else 0
    task = asyncio.create_task(prefill(pair, 9, delay=delay))
    reader, writer = await hello(pair, 9)
    await wire.read(reader, LARGE)
    if when == "confirming":
        while (await wire.read(reader, LARGE)).kind is not FrameKind.HANDOVER:
            pass
    writer.transport.abort()
    async with asyncio.timeout(0.5):
        with pytest.raises(TransferError, match="was lost during the transfer"):
            await task
    await settled(pair)


async def test_a_decode_that_stops_reading_is_given_up(pair: Pair) -> None:
    large = [Piece("page", at, bytes(1 << 20)) for at in range(24)]
    task = asyncio.create_task(prefill(pair, 9, large))
    reader, writer = await hello(pair, 9)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    with pytest.raises(TransferError, match="was lost"):
        await task
    del reader
    writer.transport.abort()
    await settled(pair)


async def test_a_cancelled_decode_stops_the_prefill(pair: Pair) -> None:
    task = asyncio.create_task(prefill(pair, 9, delay=30))
    decode = asyncio.create_task(receive(pair, 9))
    await asyncio.sleep(0.1)
    decode.cancel()
    async with asyncio.timeout(0.5):
        with pytest.raises(TransferError, match="was lost"):
            await task


async def test_a_closing_prefill_server_fails_the_decode(pair: Pair) -> None:
    decode = asyncio.create_task(receive(pair, 9))
    await asyncio.sleep(0.1)
    await pair.server.close()
    with pytest.raises(TransferError, match="was lost during the transfer"):
        await decode


async def test_a_room_in_use_is_refused_on_both_sides(pair: Pair) -> None:
    task = asyncio.create_task(prefill(pair, 3, delay=0.2))
    decode = asyncio.create_task(receive(pair, 3))
    await asyncio.sleep(0.1)
    with pytest.raises(DuplicateRoomError, match="bootstrap_room 3 is in use"):
        await prefill(pair, 3)
    with pytest.raises(TransferError, match="bootstrap_room 3 is in use"):
        await receive(pair, 3)
    _, received = await asyncio.gather(task, decode)
    assert received.pieces == PIECES


async def test_two_early_decodes_for_one_room(pair: Pair) -> None:
    first = asyncio.create_task(receive(pair, 4))
    await asyncio.sleep(0.05)
    with pytest.raises(TransferError, match="bootstrap_room 4 is in use"):
        await receive(pair, 4)
    await prefill(pair, 4)
    assert (await first).pieces == PIECES


@pytest.mark.parametrize(
    "change",
    [
        {"page_size": 8},
        {"page_bytes": 128},
        {"window_page_bytes": 64},
        {"state_bytes": 0},
        {"kv_cache_dtype": "bf16"},
        {"kv_layout": "b"},
    ],
)
async def test_another_layout_fails_the_request_and_names_the_field(pair: Pair, change: dict[str, Any]) -> None:
    other = pair.receiver(layout=dataclasses.replace(pair.layout, **change))
    task = asyncio.create_task(prefill(pair, 2))
    with pytest.raises(TransferError, match=f"{next(iter(change))} is"):
        await other.receive(HOST, pair.port, 2)
    assert (await receive(pair, 2)).pieces == PIECES
    await task


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([Piece("page", n, bytes(64)) for n in range(9)], "page 8: this server takes 8 pages at most"),
        ([Piece("window", 8, bytes(48))], "window 8: this server takes 8 pages at most"),
        ([Piece("state", 1, bytes(16))], "needs state 1"),
        ([PAGES[0], PAGES[0]], "page 0 came twice"),
        ([PIECES[-1], PIECES[-1]], "state 0 came twice"),
        ([Piece("page", 0, bytes(63))], "page 0 has 63 bytes: this server's have 64"),
        ([Piece("window", 0, bytes(64))], "window 0 has 64 bytes: this server's have 48"),
        ([Piece("state", 0, b"")], "state 0 has 0 bytes: this server's have 16"),
    ],
)
async def test_pieces_that_do_not_fit_fail_their_request_alone(pair: Pair, pieces: list[Piece], why: str) -> None:
    results = await asyncio.gather(prefill(pair, 2, pieces), receive(pair, 2), return_exceptions=True)
    assert why in str(results[1])
    assert isinstance(results[0], TransferError)
    assert isinstance(results[1], TransferError)
    _, received = await asyncio.gather(prefill(pair, 3), receive(pair, 3))
    assert received.pieces == PIECES
    await settled(pair)


async def test_strangers_are_disconnected_and_harm_nothing(pair: Pair) -> None:
    rng = random.Random(1)
    good = wire.pack(Frame(FrameKind.HELLO, {"room": 11, "peer": "x", **pair.layout.state()}))
    noise = [rng.randbytes(rng.randrange(1, 200)) for _ in range(30)]
    noise += [good[:cut] + rng.randbytes(20) for cut in range(0, len(good), 7)]
    noise += [wire.pack(Frame(kind, {"room": "x"})) for kind in FrameKind]
    noise += [wire.pack(Frame(FrameKind.HELLO, {"room": 1, "page_size": True})), b"GET /route HTTP/1.1\r\n\r\n"]

    async def stranger(data: bytes) -> None:
        reader, writer = await asyncio.open_connection(HOST, pair.port)
        writer.write(data)
        async with asyncio.timeout(2):
            assert await reader.read() == b""
        writer.close()

    task = asyncio.create_task(prefill(pair, 12, delay=0.05))
    decode = asyncio.create_task(receive(pair, 12))
    await asyncio.gather(*map(stranger, noise))
    assert (await decode).pieces == PIECES
    await task
    await settled(pair)


async def test_a_stranger_that_says_nothing_is_disconnected(pair: Pair) -> None:
    reader, writer = await asyncio.open_connection(HOST, pair.port)
    async with asyncio.timeout(1):
        assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(
    "answers",
    [
        [Frame(FrameKind.ACCEPT, {"room": 99})],
        [Frame(FrameKind.PIECE, {"piece": "page", "index": 0}, bytes(64))],
        ["accept", Frame(FrameKind.PIECE, {"page": 0}, bytes(64))],
        ["accept", Frame(FrameKind.PIECE, {"piece": "leaf", "index": 0}, bytes(64))],
        ["accept", Frame(FrameKind.PIECE, {"piece": ["page"], "index": 0}, bytes(64))],
        ["accept", Frame(FrameKind.PIECE, {"piece": "page", "index": -1}, bytes(64))],
        ["accept", Frame(FrameKind.PIECE, {"piece": "page", "index": True}, bytes(64))],
        ["accept", Frame(FrameKind.HELLO)],
        ["accept", Frame(FrameKind.HANDOVER, {"room": 1, "pieces": 1})],
        ["accept", Frame(FrameKind.HANDOVER, {"room": 2, "pieces": 0})],
        ["accept", Frame(FrameKind.PIECE, {"piece": "page", "index": 0}, bytes(65))],
        ["accept"],
        [],
        [b"HTTP/1.1 400 Bad Request\r\n\r\n"],
    ],
)
async def test_a_prefill_that_breaks_the_protocol_fails_the_request(pair: Pair, answers: list[Any]) -> None:
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wire.read(reader, LARGE)
        accept = Frame(FrameKind.ACCEPT, {"room": 1, **pair.layout.state()})
        for answer in answers:
            frame = accept if answer == "accept" else answer
            writer.write(frame if isinstance(frame, bytes) else wire.pack(frame))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(impostor, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(TransferError):
        await pair.receiver().receive(HOST, port, 1)
    server.close()


async def test_a_prefill_that_hangs_is_given_up(pair: Pair) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wire.pack(Frame(FrameKind.ACCEPT, {"room": 1, **pair.layout.state()})))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(2):
        with pytest.raises(TransferError, match="was lost"):
            await pair.receiver().receive(HOST, port, 1)
    server.close()


async def test_a_prefill_that_is_not_there(pair: Pair) -> None:
    await pair.server.close()
    with pytest.raises(TransferError, match="cannot be reached"):
        await receive(pair, 1)

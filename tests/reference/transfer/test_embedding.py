from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from epd_workers.reference.transfer.embedding import Embedding, EmbeddingError, EmbeddingInbox, push

if TYPE_CHECKING:
    from collections.abc import Iterator

HIDDEN = 3


def embedding(req_id: str = "a", tokens: tuple[int, ...] = (2, 1)) -> Embedding:
    rows = np.arange(sum(tokens) * HIDDEN, dtype=np.float32).reshape(-1, HIDDEN) / np.float32(7)
    return Embedding(req_id, 2, 1, tokens, rows, "encoder-0")


@pytest.fixture
def context() -> Iterator[zmq.asyncio.Context]:
    made: zmq.asyncio.Context = zmq.asyncio.Context()
    yield made
    made.destroy(linger=0)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.text(max_size=20))
def test_every_bit_survives_packing(tokens: list[int], req_id: str) -> None:
    sent = embedding(req_id, tuple(tokens))
    actual = Embedding.unpack(sent.pack(), HIDDEN)
    assert (actual.req_id, actual.num_parts, actual.part_idx, actual.tokens) == (req_id, 2, 1, tuple(tokens))
    assert actual.sender == "encoder-0"
    assert actual.rows.tobytes() == sent.rows.tobytes()


@given(st.lists(st.binary(max_size=300), max_size=3))
def test_garbage_gives_only_the_declared_error(frames: list[bytes]) -> None:
    with pytest.raises(EmbeddingError):
        Embedding.unpack(frames, HIDDEN)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2}, {"dtype": "float16"}, {"shape": [3]}, {"shape": [3, 4]}, {"shape": [2, 3]}, {"tokens": [3, -1]},
        {"tokens": []}, {"tokens": None}, {"tokens": [True, 2]}, {"req_id": 5}, {"part_idx": "1"}, {"sender": []},
        {"shape": [1 << 23, 3], "tokens": [1 << 23]},
    ],
)  # fmt: skip
def test_a_header_that_lies_is_refused(change: dict[str, Any]) -> None:
    head, body = embedding().pack()
    with pytest.raises(EmbeddingError):
        Embedding.unpack([json.dumps({**json.loads(head), **change}).encode(), body], HIDDEN)


def test_values_that_are_not_finite_are_refused() -> None:
    sent = embedding()
    sent.rows[0, 0] = np.nan
    with pytest.raises(EmbeddingError, match="not finite"):
        Embedding.unpack(sent.pack(), HIDDEN)


async def test_a_pushed_embedding_reaches_the_request_that_expects_it(context: zmq.asyncio.Context) -> None:
    inbox = EmbeddingInbox(context, "127.0.0.1", HIDDEN)
    arrivals = [inbox.expect(name) for name in ("a", "b")]
    for name in ("b", "a"):
        await push(context, "127.0.0.1", inbox.port, embedding(name), 2)
    actual = await asyncio.wait_for(asyncio.gather(*arrivals), 2)
    assert [item.req_id for item in actual] == ["a", "b"]
    await inbox.close()


async def test_messages_of_strangers_are_ignored(context: zmq.asyncio.Context) -> None:
    inbox = EmbeddingInbox(context, "127.0.0.1", HIDDEN)
    arrival = inbox.expect("a")
    socket = context.socket(zmq.PUSH)
    socket.connect(f"tcp://127.0.0.1:{inbox.port}")
    for frames in ([b""], [b"{}", b"x"], [b"\x80\x04."], [b"a", b"b", b"c"], embedding("other").pack()):
        await socket.send_multipart(frames)
    await push(context, "127.0.0.1", inbox.port, embedding("a"), 2)
    assert (await asyncio.wait_for(arrival, 2)).req_id == "a"
    socket.close(linger=0)
    await inbox.close()


async def test_a_push_to_nobody_ends_in_time(context: zmq.asyncio.Context) -> None:
    with pytest.raises(TimeoutError):
        await push(context, "127.0.0.1", 1, embedding(), 0.2)


async def test_a_forgotten_part_is_no_longer_awaited(context: zmq.asyncio.Context) -> None:
    inbox = EmbeddingInbox(context, "127.0.0.1", HIDDEN)
    arrival = inbox.expect("a")
    inbox.forget("a")
    assert arrival.cancelled()
    await push(context, "127.0.0.1", inbox.port, embedding("a"), 2)
    await inbox.close()

from __future__ import annotations

import asyncio
import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_workers.reference.transfer import frame as wire
from epd_workers.reference.transfer.frame import HEADER, MAGIC, VERSION, Frame, FrameError, FrameKind, FrameLimits

LIMITS = FrameLimits(meta=1000, body=1000)
json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5)
frames = st.builds(
    Frame,
    st.sampled_from(FrameKind),
    st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    st.binary(max_size=300),
)


def read_all(data: bytes, limits: FrameLimits = LIMITS) -> list[Frame]:
    async def run() -> list[Frame]:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        actual = []
        while not reader.at_eof():
            actual.append(await wire.read(reader, limits))
        return actual

    return asyncio.run(run())


@settings(max_examples=40)
@given(st.lists(frames, max_size=4))
def test_frames_survive_the_wire(sent: list[Frame]) -> None:
    assert read_all(b"".join(map(wire.pack, sent)), FrameLimits(meta=1 << 20, body=1 << 20)) == sent


@settings(max_examples=40)
@given(frames, st.data())
def test_no_cut_frame_is_taken_for_a_whole_one(sent: Frame, data: st.DataObject) -> None:
    packed = wire.pack(sent)
    cut = data.draw(st.integers(1, len(packed) - 1))
    with pytest.raises(EOFError):
        read_all(packed[:cut], FrameLimits(meta=1 << 20, body=1 << 20))


@settings(max_examples=40)
@given(frames, st.data())
def test_any_flipped_bit_is_noticed(sent: Frame, data: st.DataObject) -> None:
    packed = bytearray(wire.pack(sent))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        actual = read_all(bytes(packed), FrameLimits(meta=1 << 20, body=1 << 20))
    except (FrameError, EOFError):
        return
    # The kind is outside the checksum; nothing else may slip through.
    assert [(frame.meta, frame.body) for frame in actual] == [(sent.meta, sent.body)]


@given(st.binary(max_size=200))
def test_garbage_gives_only_the_declared_errors(data: bytes) -> None:
    for prefix in (b"", MAGIC, MAGIC + bytes([VERSION, 1])):
        try:
            read_all(prefix + data)
        except (FrameError, EOFError):
            continue


@pytest.mark.parametrize(("meta", "body"), [(1001, 0), (0, 1001), (0xFFFFFFFF, 0xFFFFFFFF)])
def test_an_oversized_frame_is_refused_before_it_is_read(meta: int, body: int) -> None:
    with pytest.raises(FrameError, match="above the 1000"):
        read_all(HEADER.pack(MAGIC, VERSION, 1, meta, body, 0))


@pytest.mark.parametrize("meta", [b"[1]", b"null", b"{", b"\xff", b"[" * 900])
def test_a_meta_that_is_not_an_object_is_refused(meta: bytes) -> None:
    packed = wire.pack(Frame(FrameKind.HELLO))
    assert json.loads(packed[HEADER.size :]) == {}
    header = HEADER.pack(MAGIC, VERSION, 1, len(meta), 0, zlib.crc32(meta))
    with pytest.raises(FrameError, match="meta is not"):
        read_all(header + meta)


def test_another_version_is_named() -> None:
    with pytest.raises(FrameError, match="version 9"):
        read_all(HEADER.pack(MAGIC, 9, 1, 0, 0, 0))

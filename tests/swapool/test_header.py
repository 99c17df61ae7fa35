from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import xxhash
from hypothesis import assume, given
from hypothesis import strategies as st

from epd_workers.swapool.header import SIZE, SKEW, Window, judge, seal
from epd_workers.swapool.key import Key, Namespace
from tests.support.swapool.windows import SPACE, key, rows, spaces

NOW = 1_800_000_000.0
NAME = key(1)
DATA = rows(NAME)
HEAD = seal(NAME, DATA, ttl=300, created=NOW, replayed=False)
keys = st.builds(Key, spaces, st.binary(min_size=16, max_size=20), st.integers(1, 200))


def test_what_was_put_comes_back() -> None:
    assert len(HEAD) == SIZE == 64
    assert judge(NAME, HEAD, DATA, NOW + 12.5) == Window(DATA, replayed=False, age=12.5)
    replayed = seal(NAME, DATA, ttl=300, created=NOW, replayed=True)
    assert judge(NAME, replayed, DATA, NOW) == Window(DATA, replayed=True, age=0.0)


def test_the_bytes_of_the_header() -> None:
    """Other versions read them: a change needs another schema."""
    facts = b"SWAW", 1, 1, 4, 128, 1024, SPACE.digest, NAME.digest, 1_800_000_000_000, 300_000, len(DATA)
    head = seal(NAME, DATA, ttl=300, created=NOW, replayed=True)
    assert head[:56] == struct.pack("<4sBBHII16s8sQII", *facts)
    assert SPACE.digest.hex() == "70b2cbabe94c57d95725dfe7e474ac4e"
    assert head[56:] == xxhash.xxh3_64_digest(head[:56] + DATA)[::-1]


@given(st.integers(0, 8 * (len(HEAD) + len(DATA)) - 1))
def test_no_bit_may_flip(bit: int) -> None:
    whole = bytearray(HEAD + DATA)
    whole[bit // 8] ^= 1 << bit % 8
    assert judge(NAME, whole[:SIZE], whole[SIZE:], NOW) == "mismatch"


@pytest.mark.parametrize("bit", range(8 * SIZE))
def test_no_bit_of_the_header_may_flip(bit: int) -> None:
    head = bytearray(HEAD)
    head[bit // 8] ^= 1 << bit % 8
    assert judge(NAME, head, DATA, NOW) == "mismatch"


@given(st.integers(0, SIZE + len(DATA) - 1))
def test_no_byte_may_be_missing(length: int) -> None:
    whole = (HEAD + DATA)[:length]
    assert judge(NAME, whole[:SIZE], whole[SIZE:], NOW) == "mismatch"


def test_no_byte_may_be_too_much() -> None:
    assert judge(NAME, HEAD, DATA + b"\0", NOW) == "mismatch"


@given(keys, keys)
def test_no_window_passes_for_another(one: Key, other: Key) -> None:
    """Whatever a server mixes up: model, revision, layout, tenant, position or tokens."""
    assume(one != other)
    data = rows(one)
    assert judge(other, seal(one, data, ttl=300, created=NOW, replayed=False), data, NOW) == "mismatch"


@pytest.mark.parametrize(
    "other",
    [
        replace(SPACE, model="large"),
        replace(SPACE, checkpoint="5f1f"),
        replace(SPACE, layout="v4"),
        replace(SPACE, row_format="bf16", row_bytes=SPACE.row_bytes),
        replace(SPACE, engine="reference 0.2.0"),
        replace(SPACE, tenant="other/deployment"),
        SPACE.salted("secret"),
    ],
    ids=["model", "revision", "layout", "dtype", "engine", "deployment", "salt"],
)
def test_no_window_of_another_namespace_is_adopted(other: Namespace) -> None:
    """D7, D14: even under the right name, with the right size."""
    stranger = Key(other, NAME.chain, NAME.position)
    head = seal(stranger, DATA, ttl=300, created=NOW, replayed=False)
    assert judge(NAME, head, DATA, NOW) == "mismatch"


@pytest.mark.parametrize(
    ("later", "fit"),
    [(0, True), (300, True), (300.01, False), (1e9, False), (-SKEW, True), (-SKEW - 0.01, False), (-1e9, False)],
)
def test_age(later: float, fit: bool) -> None:
    judged = judge(NAME, HEAD, DATA, NOW + later)
    assert isinstance(judged, Window) if fit else judged == "expired"


def test_what_writes_late_changes_nothing() -> None:
    """The rows are judged as they were copied: the buffer may change under the judge's hands."""
    buffer = bytearray(DATA)
    judged = judge(NAME, HEAD, memoryview(buffer), NOW)
    buffer[:] = bytes(len(buffer))
    assert isinstance(judged, Window)
    assert judged.data == DATA

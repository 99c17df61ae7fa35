from __future__ import annotations

import contextlib
import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_workers.swapool.settings import LONGEST, PoolSettings, parse

SECONDS = {name: st.floats(0, longest, exclude_min=True) for name, longest in LONGEST.items()}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
)


@given(st.builds(PoolSettings, st.text(min_size=1), **SECONDS))
def test_what_is_written_is_read(written: PoolSettings) -> None:
    assert parse(json.dumps(asdict(written)).encode()) == written


def test_an_address_suffices() -> None:
    assert parse(b'{"address": "valkey://host"}') == PoolSettings("valkey://host", ttl=300, deadline=0.02)


def test_nothing_means_no_pool() -> None:
    assert parse(b" {} ") is None


@given(JSON | st.fixed_dictionaries({}, optional={"address": JSON, "ttl": JSON, "deadline": JSON}))
def test_what_cannot_be_followed_is_refused_with_its_way_out(given: object) -> None:
    text, reported = json.dumps(given).encode(), None
    with contextlib.suppress(ValueError):
        reported = parse(text)
    if reported is not None:
        assert reported.address
        assert 0 < reported.ttl <= 86400
        assert 0 < reported.deadline <= 10
    elif given != {}:
        with pytest.raises(ValueError, match=r'give \{"address": '):
            parse(text)


@given(st.binary(max_size=40))
def test_whatever_the_bytes_are(text: bytes) -> None:
    with pytest.raises(ValueError, match="it is not JSON"):
        parse(b"x" + text)


def test_all_faults_at_once() -> None:
    with pytest.raises(ValueError, match="give") as caught:
        parse(b'{"adress": "valkey://host", "ttl": 0, "deadline": "fast"}')
    assert str(caught.value) == (
        "unknown field 'adress'; address must be a non-empty string; "
        "ttl is 0: it must be a number of seconds above 0 and at most 86400; "
        "deadline is 'fast': it must be a number of seconds above 0 and at most 10: "
        'give {"address": "valkey://HOST:6379", "ttl": 300.0, "deadline": 0.02}, or {} for no pool'
    )

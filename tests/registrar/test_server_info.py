from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_workers.registrar.server_info import ServerInfo, parse
from tests.support.registrar_values import POOL, RUNNING, SHOWN, changed, shown


def test_a_report_is_read_and_shown() -> None:
    actual = parse({"replay": changed("decoder", extra="left out"), "swa_pool": POOL | {"more": 1}, "version": "0.1"})
    assert (shown(actual), actual.faults) == ({"replay": SHOWN, "swa_pool": POOL}, ())


def test_a_pod_that_cannot_follow_its_configuration_names_no_engine() -> None:
    message = POOL | {"engine": "", "fault": "Misconfigured"}
    assert shown(parse({"swa_pool": message})) == {"swa_pool": message}


@pytest.mark.parametrize("info", [{}, {"replay": None, "swa_pool": None}, [], "text", None, 3])
def test_no_report_is_none(info: object) -> None:
    assert parse(info) == ServerInfo()


@pytest.mark.parametrize(
    ("report", "names"),
    [
        (True, "replay"),
        ({}, "replay.decoder"),
        ({"decoder": RUNNING["decoder"]}, "replay.encoder"),
        (changed("decoder", active=1), "replay.decoder.active"),
        (changed("decoder", reason=None), "replay.decoder.reason"),
        (changed("decoder", reason="no such word"), "replay.decoder.reason"),
        (changed("decoder", reason="A" * 65), "replay.decoder.reason"),
        (changed("decoder", preset="\n"), "replay.decoder.preset"),
        (changed("decoder", rows_run=-1), "replay.decoder.rows_run"),
        (changed("decoder", rows_skipped=1.5), "replay.decoder.rows_skipped"),
        (changed("encoder", rows_replayed=True), "replay.encoder.rows_replayed"),
        (changed("encoder", rows_replayed=2**63), "replay.encoder.rows_replayed"),
    ],
)
def test_a_wrong_word_on_replay_names_the_part_and_leaves_the_pool_s(report: object, names: str) -> None:
    actual = parse({"replay": report, "swa_pool": POOL})
    (fault,) = actual.faults
    assert fault.startswith(f"{names} must ")
    assert shown(actual) == {"swa_pool": POOL}


@pytest.mark.parametrize(
    ("report", "names"),
    [
        ([], "swa_pool"),
        (POOL | {"engine": "valkey\n"}, "swa_pool.engine"),
        (POOL | {"engine": "v" * 33}, "swa_pool.engine"),
        (POOL | {"fault": "valkey: connection refused"}, "swa_pool.fault"),
        (POOL | {"fault": None}, "swa_pool.fault"),
        (POOL | {"hits": -1}, "swa_pool.hits"),
        (POOL | {"misses": 0.5}, "swa_pool.misses"),
        (POOL | {"stored": True}, "swa_pool.stored"),
        (POOL | {"dropped": 2**63}, "swa_pool.dropped"),
        ({name: value for name, value in POOL.items() if name != "hits"}, "swa_pool.hits"),
    ],
)
def test_a_wrong_word_on_the_pool_names_the_part_and_leaves_replay_s(report: object, names: str) -> None:
    actual = parse({"replay": RUNNING, "swa_pool": report})
    (fault,) = actual.faults
    assert fault.startswith(f"{names} must ")
    assert shown(actual) == {"replay": SHOWN}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*RUNNING, *SHOWN["decoder"], *POOL]), inner)
    ),
    max_leaves=8,
)


@given(message=JSON, half=st.sampled_from(list(RUNNING)), word=st.sampled_from(list(RUNNING["decoder"])))
def test_whatever_comes_on_replay_is_a_report_or_a_fault(message: Any, half: str, word: str) -> None:
    for tried in (message, changed(half, **{word: message})):
        actual = parse({"replay": tried})
        assert (actual.replay is None) == (tried is None or bool(actual.faults))


@given(message=JSON, word=st.sampled_from(list(POOL)))
def test_whatever_comes_on_the_pool_is_a_report_or_a_fault(message: Any, word: str) -> None:
    for tried in (message, POOL | {word: message}):
        actual = parse({"swa_pool": tried})
        assert (actual.swa_pool is None) == (tried is None or bool(actual.faults))

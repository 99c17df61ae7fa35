from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd_workers.swapool.history import ENOUGH, History, PoolReport
from epd_workers.swapool.lookup import Verdict
from epd_workers.swapool.metrics import Got, Put

DOWN = Verdict("timeout", fault="no answer")
HIT, MISS = Verdict("hit"), Verdict("miss")


class Diary(History):
    """A history whose time a test makes pass."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(lambda: self.now)

    def fault(self) -> str:
        return self.report("memory").fault

    def every(self, seconds: float, times: int, verdict: Verdict | None = None, put: Put | None = None) -> None:
        for _ in range(times):
            self.now += seconds
            if verdict:
                self.got(verdict)
            if put:
                self.put(put)


@pytest.fixture
def diary() -> Diary:
    return Diary()


def test_counts(diary: Diary) -> None:
    for verdict in (HIT, HIT, MISS, DOWN, Verdict("breaker"), Verdict("expired")):
        diary.got(verdict)
    for result in get_args(Put):
        diary.put(result)
    assert diary.report("valkey") == PoolReport("valkey", "", hits=2, misses=4, stored=1, dropped=6)


def test_unreachable_takes_ten_seconds_of_failures(diary: Diary) -> None:
    diary.every(4, 3, DOWN)
    assert not diary.fault()
    diary.every(2, 1, DOWN)
    assert diary.fault() == "Unreachable"
    diary.got(Verdict("breaker"))
    assert diary.fault() == "Unreachable", "what was not even asked says nothing"
    diary.got(MISS)
    assert not diary.fault()


def test_one_failure_long_ago_is_not_unreachable(diary: Diary) -> None:
    diary.got(DOWN)
    diary.now += 60
    assert not diary.fault()


def test_puts_tell_of_the_server_too(diary: Diary) -> None:
    for _ in range(2):
        diary.put("error", failed=True)
        diary.now += 10
    assert diary.fault() == "Unreachable"
    diary.put("taken")
    assert not diary.fault()


def test_an_idle_server_forgets_what_may_be_over(diary: Diary) -> None:
    diary.every(5, 3, DOWN)
    diary.now += 599
    assert diary.fault() == "Unreachable"
    diary.now += 2
    assert not diary.fault()


def test_full_takes_a_minute_of_refusals(diary: Diary) -> None:
    diary.every(10, 6, put="full")
    assert not diary.fault()
    diary.every(10, 1, put="full")
    assert diary.fault() == "Full"
    diary.put("busy")
    assert diary.fault() == "Full"
    diary.put("stored")
    assert not diary.fault()


def test_no_hits_takes_an_hour_of_lookups_and_something_to_find(diary: Diary) -> None:
    diary.put("stored")
    diary.every(60, 60, MISS)
    assert not diary.fault()
    diary.every(60, 1, MISS)
    assert diary.fault() == "NoHits"
    diary.got(HIT)
    diary.every(60, 61, MISS)
    assert not diary.fault(), "nothing has been stored since the last hit"
    diary.put("stored")
    assert diary.fault() == "NoHits"


def test_a_quiet_hour_is_not_one_without_hits(diary: Diary) -> None:
    diary.put("stored")
    diary.every(500, ENOUGH - 1, MISS)
    assert not diary.fault()
    diary.every(500, 1, MISS)
    assert diary.fault() == "NoHits"


def test_the_worst_word_wins(diary: Diary) -> None:
    diary.put("stored")
    diary.every(60, 100, MISS, put="full")
    assert diary.fault() == "Full"
    diary.every(5, 3, DOWN)
    assert diary.fault() == "Unreachable"


EVENT = st.tuples(
    st.floats(0, 400),
    st.sampled_from([*get_args(Got)]).map(lambda result: Verdict(result, fault="bad" if result == "error" else "")),
    st.sampled_from([*get_args(Put)]),
)


@given(st.lists(EVENT, max_size=60))
def test_nothing_is_lost_nor_counted_twice(events: list[tuple[float, Verdict, Put]]) -> None:
    diary = Diary()
    for seconds, verdict, put in events:
        diary.every(seconds, 1, verdict, put)
        diary.got(HIT)
        diary.put("stored")
        assert not diary.fault(), "it works at this moment"
    report = diary.report("valkey")
    assert report.hits + report.misses == report.stored + report.dropped == 2 * len(events)

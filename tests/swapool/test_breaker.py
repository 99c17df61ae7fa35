from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from epd_workers.swapool.breaker import Breaker
from tests.support.swapool.windows import Clock

if TYPE_CHECKING:
    import pytest


def ticket(breaker: Breaker) -> int:
    actual = breaker.admit()
    assert actual is not None
    return actual


def test_one_call_a_period_and_periods_double() -> None:
    clock = Clock()
    breaker = Breaker("x", first=1, ceiling=4, clock=clock)
    asked = []
    for tenth in range(200):
        clock.now = tenth / 10
        if (admitted := breaker.admit()) is not None:
            asked.append(clock.now)
            breaker.failed(admitted, "down")
    assert asked == [0, 1, 3, 7, 11, 15, 19]


def test_calls_that_fail_together_count_once() -> None:
    clock = Clock()
    breaker = Breaker("x", first=1, ceiling=100, clock=clock)
    tickets = [ticket(breaker) for _ in range(50)]
    for each in tickets:
        breaker.failed(each, "down")
    clock.now = 1.0
    assert breaker.admit() is not None
    assert breaker.admit() is None


def test_success_closes() -> None:
    clock = Clock()
    breaker = Breaker("x", clock=clock)
    old = ticket(breaker)
    breaker.failed(ticket(breaker), "down")
    assert breaker.open
    assert breaker.reason == "down"
    breaker.succeeded(old)
    assert breaker.open, "an answer to a question from before says nothing about now"
    clock.now = 1.0
    breaker.succeeded(ticket(breaker))
    assert not breaker.open
    assert not breaker.reason


def test_a_probe_without_a_report_does_not_shut_out() -> None:
    clock = Clock()
    breaker = Breaker("x", first=1, clock=clock)
    breaker.failed(ticket(breaker), "down")
    clock.now = 1.0
    ticket(breaker)
    assert breaker.admit() is None
    clock.now = 2.0
    breaker.succeeded(ticket(breaker))
    assert not breaker.open


def test_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    breaker = Breaker("window pool", first=1, clock=clock)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            breaker.failed(ticket(breaker), "connection refused")
            clock.now += 10
        breaker.succeeded(ticket(breaker))
    assert caplog.messages == [
        "window pool: connection refused; answering without it, asking again in 1.0 s",
        "window pool answers again",
    ]

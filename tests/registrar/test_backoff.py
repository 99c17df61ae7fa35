from __future__ import annotations

from epd_workers.registrar.backoff import Backoff


def test_delays_grow_to_the_ceiling_and_end_with_a_success() -> None:
    now = 0.0
    backoff = Backoff(first=1, ceiling=8, clock=lambda: now)
    delays = [backoff.failed("a") for _ in range(30)]
    assert 0.5 <= delays[0] <= 1
    assert all(4 <= delay <= 8 for delay in delays[5:])
    assert backoff.waiting("a")
    assert not backoff.waiting("b")
    now = 9.0
    assert not backoff.waiting("a")
    backoff.succeeded("a")
    assert backoff.failed("a") <= 1


def test_targets_that_are_gone_are_forgotten() -> None:
    backoff = Backoff(first=1, clock=lambda: 0.0)
    backoff.failed("a")
    backoff.keep({"b"})
    assert not backoff.waiting("a")

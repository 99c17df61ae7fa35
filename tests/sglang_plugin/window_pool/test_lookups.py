"""One lookup a request, one verdict for all ranks, and no wait beyond the deadline."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from epd_sglang.window_pool.lookups import Lookups, Verdict
from epd_sglang.window_pool.request import Chains
from epd_workers.swapool import lookup
from epd_workers.swapool.header import Window
from epd_workers.swapool.lookup import Lookup
from tests.support.engine_requests import PAGE, request

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE = 0.05
HIT = lookup.Verdict("hit", Window(b"rows", replayed=False, age=0.0))


@dataclass
class Asked:
    """A pool that remembers what it was asked, and answers at once, later or never."""

    answer: lookup.Verdict | None = HIT
    delay: float = 0.0
    deadline: float = DEADLINE
    off: bool = False
    positions: list[int] = field(default_factory=list)
    chains: list[bytes] = field(default_factory=list)

    def begin(self, chain: bytes, position: int, done: Callable[[], None]) -> Lookup | None:
        self.positions.append(position)
        self.chains.append(chain)
        if self.off:
            return None
        made = Lookup(time.monotonic() + self.deadline, lambda _: None, done)
        if self.answer is not None:
            threading.Timer(self.delay, made.answer, [self.answer]).start() if self.delay else made.answer(self.answer)
        return made


def alone(verdict: Verdict) -> Verdict:
    return verdict


def lookups(store: Asked | None, *, held: int = 64, share: Callable[[Verdict], Verdict] = alone) -> Lookups:
    return Lookups(store, Chains(PAGE), share, least=128, held=held)


def test_a_window_that_has_come_spares_the_replay_once() -> None:
    store, one = Asked(), request(1000)
    asking = lookups(store)
    asking.ask(one, 768)
    assert [asking.spares(one, 768) for _ in range(3)] == [True] * 3
    assert store.positions == [768]
    assert store.chains == [Chains(PAGE).page_at(one, 768)]
    assert asking.take(one, 768, 232) == Verdict(768, b"rows")
    assert asking.take(one, 768, 232) is None


def test_a_request_that_nobody_asked_for_early_is_asked_for_at_its_turn() -> None:
    store, one = Asked(delay=0.01, deadline=5), request(1000)
    assert lookups(store).spares(one, 768)
    assert store.positions == [768]


def test_a_server_that_never_answers_costs_one_deadline() -> None:
    asking, one = lookups(Asked(answer=None)), request(1000)
    asking.ask(one, 768)
    began = time.monotonic()
    assert [asking.spares(one, 768) for _ in range(3)] == [False] * 3
    assert time.monotonic() - began < DEADLINE + 0.2
    assert asking.take(one, 768, 232) is None


@pytest.mark.parametrize(("prompt", "prefix"), [(895, 768), (768, 768), (1000, 0)])
def test_hits_with_too_few_rows_behind_are_not_asked_for(prompt: int, prefix: int) -> None:
    store, one = Asked(), request(prompt)
    asking = lookups(store)
    asking.ask(one, prefix)
    assert not asking.spares(one, prefix)
    assert not store.positions


def test_a_step_that_runs_too_few_of_them_takes_nothing() -> None:
    asking, one = lookups(Asked()), request(1000)
    assert asking.spares(one, 768)
    assert asking.take(one, 768, 127) is None


def test_a_prefix_that_has_changed_while_it_waited_is_replayed_without_a_second_question() -> None:
    store, one = Asked(), request(2000)
    asking = lookups(store)
    asking.ask(one, 768)
    assert not asking.spares(one, 1024)
    assert asking.take(one, 1024, 900) is None
    assert store.positions == [768]


def test_what_waits_in_memory_is_bounded() -> None:
    store, many = Asked(), [request(1000) for _ in range(5)]
    asking = lookups(store, held=2)
    for one in many:
        asking.ask(one, 768)
    assert len(store.positions) == 2
    assert all(asking.spares(one, 768) for one in many)


def test_a_request_that_comes_back_is_asked_for_anew() -> None:
    store, one = Asked(answer=lookup.Verdict("miss")), request(1000)
    asking = lookups(store)
    asking.ask(one, 768)
    assert not asking.spares(one, 768)
    store.answer = HIT
    asking.ask(one, 768)
    assert asking.spares(one, 768)


def test_without_a_pool_nothing_waits() -> None:
    one = request(1000)
    assert not lookups(Asked(off=True)).spares(one, 768)
    assert not lookups(None).spares(one, 768)


def test_all_ranks_follow_the_one_that_asked() -> None:
    sent: list[Verdict] = []

    def send(verdict: Verdict) -> Verdict:
        sent.append(verdict)
        return verdict

    one, prefix = request(1000), 768
    first, second = lookups(Asked(), share=send), lookups(None, share=lambda _: sent[-1])
    assert first.spares(one, prefix)
    assert second.spares(one, prefix)
    assert second.take(one, prefix, 232) == first.take(one, prefix, 232) == Verdict(768, b"rows")
    assert len(sent) == 1

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_workers.reference.engine.request import Limits, PromptTooLong, QueueFull
from epd_workers.reference.engine.slots import Slots


def limits(**sizes: int) -> Limits:
    given = {"page_size": 4, "max_total_tokens": 40, "max_running_requests": 3, "max_queued_requests": 2} | sizes
    return Limits(**given)  # type: ignore[arg-type] # numbers, by name


def test_first_in_line_is_not_overtaken() -> None:
    slots = Slots(limits())
    assert slots.enter("a", 33)
    assert not slots.enter("large", 20)
    assert not slots.enter("small", 1)
    assert slots.leave("a") == ["large", "small"]


def test_refusals() -> None:
    slots = Slots(limits(max_running_requests=1))
    with pytest.raises(PromptTooLong, match="need 41 tokens: this engine holds 40"):
        slots.enter("huge", 41)
    slots.enter("a", 40)
    slots.enter("b", 1)
    slots.enter("c", 1)
    with pytest.raises(QueueFull, match="2 requests"):
        slots.enter("d", 1)
    with pytest.raises(PromptTooLong):
        slots.enter("huge", 41)


def test_capacity_is_rounded_down_to_whole_pages() -> None:
    assert Slots(limits(max_total_tokens=43)).capacity_tokens == 40


def test_bad_limits_are_listed() -> None:
    with pytest.raises(ValueError, match=r"page_size is 0.*chunked_prefill_size is -1"):
        Limits(page_size=0, chunked_prefill_size=-1)
    with pytest.raises(ValueError, match="must hold one page of 64"):
        Limits(max_total_tokens=63)
    with pytest.raises(
        ValueError, match=r"window_cache_tokens is -1.*cache_type is 'fp8'.*replay is '0.5.22': must be"
    ):
        Limits(window_cache_tokens=-1, cache_type="fp8", replay="0.5.22")  # type: ignore[arg-type] # wrong


class Twin:
    """What 3 slots, 40 tokens and 2 waiting places must do, in a few plain lines."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.waiting: dict[str, int] = {}

    def fits(self, tokens: int) -> bool:
        return len(self.running) < 3 and sum(self.running.values()) + tokens <= 40

    def enter(self, rid: str, tokens: int) -> bool | type[Exception]:
        tokens = -(-tokens // 4) * 4
        if tokens > 40:
            return PromptTooLong
        if not self.waiting and self.fits(tokens):
            self.running[rid] = tokens
            return True
        if len(self.waiting) == 2:
            return QueueFull
        self.waiting[rid] = tokens
        return False

    def leave(self, rid: str) -> list[str]:
        self.running.pop(rid, None)
        self.waiting.pop(rid, None)
        admitted = []
        while self.waiting and self.fits(next(iter(self.waiting.values()))):
            first = next(iter(self.waiting))
            self.running[first] = self.waiting.pop(first)
            admitted.append(first)
        return admitted


def entered(slots: Slots, rid: str, tokens: int) -> bool | type[Exception]:
    try:
        return slots.enter(rid, tokens)
    except (PromptTooLong, QueueFull) as error:
        return type(error)


@settings(max_examples=200)
@given(st.lists(st.one_of(st.integers(1, 45), st.integers(-8, -1)), max_size=40))
def test_bounds_hold_and_everything_comes_back(moves: list[int]) -> None:
    """Positive: a request of that many tokens enters. Negative: one of those inside leaves."""
    slots, twin = Slots(limits()), Twin()
    for number, move in enumerate(moves):
        inside = [*twin.running, *twin.waiting]
        if move > 0:
            assert entered(slots, str(number), move) == twin.enter(str(number), move)
        elif inside:
            rid = inside[move % len(inside)]
            assert slots.leave(rid) == twin.leave(rid)
        assert (slots.running, slots.waiting) == (len(twin.running), len(twin.waiting))
        assert slots.used_tokens == sum(twin.running.values()) <= 40
        assert all(rid in slots for rid in [*twin.running, *twin.waiting])
    for rid in [*twin.running, *twin.waiting]:
        assert slots.leave(rid) == twin.leave(rid)
    assert (slots.running, slots.waiting, slots.used_tokens) == (0, 0, 0)

"""What the hooks do around stock functions, without an engine."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import pytest

from epd_sglang.window_pool import hooks
from epd_sglang.window_pool.hooks import Charge, Commit, Fill, Place, Start, Step

if TYPE_CHECKING:
    from epd_sglang.hook import Hook

MODULE = types.ModuleType("engine")


class Pool:
    """A pool that spares every hit of 768 tokens, and writes down what it is asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.lookups = self

    def spares(self, request: object, prefix: int) -> bool:
        self.calls.append(("spares", request, prefix))
        return prefix == 768

    def begin(self) -> None:
        self.calls.append("begin")

    def fill(self, batch: object, ring: object, replays: list[int]) -> list[int]:
        self.calls.append(("fill", batch, ring))
        return replays[1:]

    def committed(self, ring: object, layer: int) -> None:
        self.calls.append(("committed", ring, layer))


def place(pool: Pool | None) -> Place:
    made = Place()
    made.pool = pool  # type: ignore[assignment] # as much of one as the hooks look at
    return made


def around(kind: type[Hook], pool: Pool | None, stock: Any) -> Any:
    return kind(place(pool)).replacement(MODULE, stock)  # type: ignore[call-arg] # all hooks of the pool take a place


def test_a_process_without_a_pool_runs_what_the_engine_has() -> None:
    assert around(Charge, None, lambda *_: 128)(None, "request", 768) == 128
    assert around(Fill, None, lambda **_: [1, 2])(batch=None, window=None) == [1, 2]
    assert around(Step, None, lambda *_: "folded")(None, None) == "folded"
    assert around(Commit, None, lambda *_: None)(None, 3) is None


def test_a_hit_that_is_spared_is_charged_nothing_and_one_that_is_not_what_the_engine_says() -> None:
    pool = Pool()
    charge = around(Charge, pool, lambda *_: 128)
    assert [charge(None, "request", prefix) for prefix in (768, 1024)] == [0, 128]
    assert around(Charge, pool, lambda *_: 0)(None, "later chunk", 768) == 0
    assert [call[1] for call in pool.calls] == ["request", "request"]


def test_the_pool_sees_a_step_before_the_engine_does_and_a_layer_before_it_is_given_up() -> None:
    pool = Pool()
    around(Step, pool, lambda *_: pool.calls.append("fold"))(None, None)
    assert around(Fill, pool, lambda **_: [1, 2])(batch="batch", window="ring") == [2]
    around(Commit, pool, lambda *_: pool.calls.append("commit"))("ring", 3)
    assert pool.calls == ["begin", "fold", ("fill", "batch", "ring"), ("committed", "ring", 3), "commit"]


@pytest.mark.parametrize("asked", [False, True])
def test_a_missing_package_costs_the_pool_alone(
    asked: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine itself is such a package here."""
    monkeypatch.setenv(hooks.SETTINGS, "/settings.json" if asked else "")
    made = Place()
    assert Start(made).replacement(MODULE, lambda _: "served")(None) == "served"
    assert made.pool is None
    assert caplog.messages == (
        ["no window pool: No module named 'sglang'; install it for the engine's Python"] if asked else []
    )

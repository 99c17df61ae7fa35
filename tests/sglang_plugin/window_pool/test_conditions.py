from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from epd_sglang.window_pool.conditions import Facts, obstacles

FIT = Facts(replays=True, folds=True, role="prefill", attention_ranks=1, staged_engram=False)


@pytest.mark.parametrize("role", ["null", "prefill"])
def test_an_engine_that_replays_in_its_own_step_can_use_a_pool(role: str) -> None:
    assert obstacles(replace(FIT, role=role)) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"replays": False}, "--enable-encoder-swa-bounded-replay"),
        ({"folds": False}, "step of its own"),
        ({"role": "decode"}, "decode"),
        ({"attention_ranks": 8}, "8 data-parallel ranks"),
        ({"staged_engram": True}, "Engram"),
    ],
)
def test_each_obstacle_is_named(change: dict[str, Any], word: str) -> None:
    (reason,) = obstacles(replace(FIT, **change))
    assert word in reason


def test_all_obstacles_are_named_at_once() -> None:
    assert len(obstacles(Facts(True, False, "decode", 2, True))) == 4

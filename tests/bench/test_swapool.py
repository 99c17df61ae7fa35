from __future__ import annotations

from itertools import pairwise, product
from typing import TYPE_CHECKING

import pytest

from bench.swapool import quantiles
from bench.swapool.replay import COPIES, TTLS, WINDOWS, replay
from bench.swapool.trace import PAGE, WINDOW, Boundary, pauses, rate, turns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.swapool.trace import Turn

POINTS = 2.0


@pytest.fixture(scope="module")
def trace() -> Sequence[Turn]:
    return turns()


# The trace.


def test_turns_of_the_trace(trace: Sequence[Turn]) -> None:
    assert len(trace) == 7000
    assert all(a.at <= b.at for a, b in pairwise(trace))
    assert rate(trace) == pytest.approx(3.23, abs=0.01)
    assert len(pauses(trace)) == 2141


def test_a_turn_comes_back_to_what_the_one_before_it_published(trace: Sequence[Turn]) -> None:
    published: set[Boundary] = set()
    for turn in trace:
        assert turn.looks is None or turn.looks in published
        assert all(boundary.position % PAGE == 0 < boundary.position for boundary in turn.publishes)
        published.update(turn.publishes)


def test_without_decoder_replay_a_prompt_publishes_its_last_boundary_alone() -> None:
    assert {len(turn.publishes) for turn in turns(rerun=1)} == {1}
    assert {len(turn.publishes) for turn in turns(rerun=WINDOW)} <= {1, 2, 3}


def test_the_operator_has_the_pauses_of_the_trace() -> None:
    assert quantiles.main(["--check"]) == 0


def test_other_pauses_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "gaps.py"
    monkeypatch.setattr(quantiles, "TARGET", target)
    assert quantiles.main(["--check"]) == 1
    assert quantiles.main([]) == 0
    assert quantiles.main(["--check"]) == 0
    target.write_text(target.read_text(encoding="utf-8").replace("0.30", "0.31"), encoding="utf-8")
    assert quantiles.main(["--check"]) == 1


# Hits.


@pytest.mark.parametrize(
    ("ttl", "windows", "copies"),
    [*product(TTLS, WINDOWS[:-1], COPIES[:1]), *product((300.0,), WINDOWS[1:], COPIES[-1:])],
)
def test_the_pool_hits_as_often_as_is_reckoned(trace: Sequence[Turn], ttl: float, windows: int, copies: int) -> None:
    cell = replay(trace, ttl, windows, copies)
    assert cell.returning == 2141 * copies
    assert abs(cell.difference) <= POINTS


@pytest.mark.nightly
@pytest.mark.parametrize(("ttl", "windows", "copies"), [*product(TTLS, WINDOWS, COPIES)])
def test_all_cells_hit_as_often_as_is_reckoned(trace: Sequence[Turn], ttl: float, windows: int, copies: int) -> None:
    assert abs(replay(trace, ttl, windows, copies).difference) <= POINTS

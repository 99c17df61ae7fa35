from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.replay import figure, table
from bench.replay.__main__ import LONG_PAIRS, PAIRS, QUICK_PAIRS, main, parse
from bench.replay.meter import SHARED, Cost, Meter
from bench.replay.model import config, lengths, load, prompts
from bench.replay.point import COUNTED, TIMED, Miscount, Point, checked, expected, measure
from bench.spread import Spread
from epd_workers.reference.cache.paged_pool import KvPool
from epd_workers.reference.cache.sequence import Sequence
from epd_workers.reference.model.config import RELEASED
from epd_workers.reference.model.interface import Extend
from epd_workers.reference.model.replay import PRESETS, Work

if TYPE_CHECKING:
    from collections.abc import Sequence as Values
    from pathlib import Path

    from epd_workers.reference.model.loaded import LoadedModel
    from epd_workers.reference.model.replay import Preset

E = 160
RAGGED = [150, 8, 130]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load()


@pytest.fixture(scope="module")
def meter(model: LoadedModel) -> Meter:
    return Meter(model, 512, len(RAGGED))


def cost(name: str, sizes: Values[int], seconds: float = 4.0, selection: float = 1.0) -> Cost:
    """As if the rule had been followed."""
    rows = expected(config().text, sizes, name)
    pieces: Any = dict.fromkeys(SHARED, 0.25) | {"selection": selection}
    return Cost(seconds, pieces, rows, Work(encoder=sum(rows)))


def test_the_model_has_the_released_layers() -> None:
    ours, released = config().text, RELEASED.text
    assert ours.faults() == []
    assert ours.plans == released.plans
    assert (ours.sliding_window, ours.candidate_topk_blocks) == (128, 2048)


@given(st.integers(1, 10000), st.integers(1, 12))
def test_ragged_lengths_make_up_the_whole(total: int, requests: int) -> None:
    sizes = lengths(total, requests)
    assert len(sizes) == requests
    assert sum(sizes) == total
    if total >= requests * (requests + 1):
        assert all(a < b for a, b in pairwise(sizes))


@pytest.mark.parametrize("rows", [1, 128, 129, 8192])
def test_the_rule_is_20_or_21_layers_on_all_rows(rows: int) -> None:
    text, tail = config().text, min(128, rows)
    assert sum(expected(text, [rows], "off")) == 40 * rows
    assert sum(expected(text, [rows], TIMED)) == 20 * rows + 20 * tail
    assert sum(expected(text, [rows], COUNTED)) == 21 * rows + 19 * tail
    assert sum(expected(text, RAGGED, TIMED)) == 20 * sum(RAGGED) + 20 * (128 + 8 + 128)


@pytest.mark.parametrize("sizes", [[E], RAGGED], ids=["one", "ragged"])
@pytest.mark.parametrize("name", ["off", TIMED, COUNTED])
def test_the_meter_counts_what_ran(model: LoadedModel, meter: Meter, sizes: list[int], name: str) -> None:
    actual = meter.measure(prompts(model, sizes), PRESETS.get(name))
    assert checked(config().text, sizes, name, actual) == sum(expected(config().text, sizes, name))
    assert all(actual.pieces[piece] > 0 for piece in (*SHARED, "selection"))
    assert 0 < actual.linear < actual.layers < actual.seconds
    # It left nothing behind: the pool takes another batch as large as it is.
    assert meter.measure(prompts(model, [512]), None).rows == (512,) * 40


def test_the_meter_changes_no_result(model: LoadedModel, meter: Meter) -> None:
    ids = prompts(model, [E])[0]
    logits = []
    for forward in (meter, model.bind(KvPool(model.geometry(64, "fp4"), 3, 3), PRESETS[TIMED])):
        meter.measure([ids], PRESETS[TIMED])
        sequence = Sequence(forward._pool)
        sequence.history = model.history([])
        sequence.reserve(E)
        logits.append(forward([Extend(ids, sequence)]).logits[0])
        sequence.release()
    assert torch.equal(*logits)


def test_other_rows_than_the_rule_says_are_an_error() -> None:
    text, right = config().text, cost(TIMED, [E])
    assert checked(text, [E], TIMED, right) == 20 * E + 20 * 128
    with pytest.raises(Miscount, match="replay off"):
        checked(text, [E], "off", right)
    with pytest.raises(Miscount, match="reported"):
        checked(text, [E], TIMED, replace(right, work=Work(encoder=1)))


def test_pairs_alternate_and_ratios_are_of_pairs(model: LoadedModel) -> None:
    seconds = iter([9, 9, 9, 9, 4, 5, 10, 12, 4])  # three to warm up; off on, on off, off on
    calls = []

    class Fake:
        def measure(self, batch: list[list[int]], preset: Preset | None) -> Cost:
            name = preset.name if preset else "off"
            calls.append(name)
            return cost(name, [len(ids) for ids in batch], next(seconds))

    meter: Any = Fake()
    point = measure(model, meter, rows=E, requests=1, pairs=3, tell=lambda _: None)
    assert calls == [COUNTED, "off", TIMED, "off", TIMED, TIMED, "off", "off", TIMED]
    assert point.whole == Spread(9 / 4, 10 / 5, 12 / 4)
    assert point.layers == Spread(8 / 3, 9 / 4, 11 / 3)
    assert point.linear == Spread(7 / 2, 8 / 3, 10 / 2)
    assert point.theory == pytest.approx(40 * E / (20 * E + 20 * 128))


def points() -> list[Point]:
    actual = []
    for requests in (1, 8):
        for rows in (512, 1024):
            sizes = lengths(rows, requests)
            counts = {name: sum(expected(config().text, sizes, name)) for name in ("off", TIMED, COUNTED)}
            pairs = tuple((cost("off", sizes, 8.0 + n), cost(TIMED, sizes, 5.0)) for n in range(3))
            actual.append(Point(tuple(sizes), pairs, counts))
    return actual


def test_the_table_has_a_row_for_each_point() -> None:
    lines = table.table(points()).splitlines()
    assert lines[0] == "1 request"
    assert lines[3].split() == [
        *("512", "20480", "12800", "13184", "1.600", "9.000", "5.000", "11%", "1.80", "(1.60-2.00)"),
        *("2.00", "(1.75-2.25)", "125.0", "2.33", "(2.00-2.67)", "145.8", "3"),
    ]
    assert lines[6] == "8 requests, prompt lengths 1 : 2 : ... : 8"
    assert [lines[number].split()[0] for number in (4, 9, 10)] == ["1024", "512", "1024"]


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_plot_is_the_same_for_the_same_figures(tmp_path: Path, suffix: str) -> None:
    written = []
    for name in ("a", "b"):
        path = tmp_path / name / f"plot{suffix}"
        figure.draw(points(), path)
        written.append(path.read_bytes())
    assert written[0] == written[1]
    if suffix == ".svg":
        assert b"8 requests of different lengths" in written[0]


def test_options() -> None:
    usual, quick = parse([]), parse(["--quick"])
    assert usual.lengths[-1] == 8192
    assert [usual.pairs_at(rows) for rows in (2048, 4096)] == [PAIRS, LONG_PAIRS]
    assert quick.plot is None
    assert quick.pairs_at(512) == QUICK_PAIRS
    assert parse(["--lengths", "512", "256", "512", "--pairs", "2"]).lengths == (256, 512)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengths", "x"], "whole number"),
        (["--pairs", "0"], "whole number"),
        (["--lengths", "20000"], "at most 16384"),
        (["--lengths", "30"], "too few tokens for 8 requests"),
        (["--plot", "x.pdf"], ".svg or .png"),
    ],
)
def test_bad_options(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)
    assert message in capsys.readouterr().err


def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--lengths", "129", "--requests", "1", "--pairs", "1", "--plot", str(tmp_path / "plot.svg"), "--json"])
    captured = capsys.readouterr()
    (point,) = json.loads(captured.out)["points"]
    assert point["rows_x_layers"] == {"off": 5160, TIMED: 5140, COUNTED: 5141}
    assert len(point["pairs"]) == 1
    assert "1 request, E = 129: pair 1 of 1" in captured.err
    assert (tmp_path / "plot.svg").stat().st_size > 0

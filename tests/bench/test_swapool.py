from __future__ import annotations

import hashlib
import json
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import pytest
import valkey

from bench.epd.fleet import NotStarted
from bench.spread import Spread
from bench.swapool import figure, latency, quantiles, servers, table
from bench.swapool import turn as returning
from bench.swapool.__main__ import PLOTS, main, parse
from bench.swapool.latency import Effort, points
from bench.swapool.replay import COPIES, TTLS, WINDOWS, Cell, replay
from bench.swapool.results import Results
from bench.swapool.route import Place
from bench.swapool.trace import PAGE, WINDOW, Boundary, pauses, rate, turns
from epd_operator.cli import pool_sizing
from epd_workers.swapool.address import engine
from epd_workers.swapool.key import Key, Namespace
from epd_workers.swapool.pool import WindowPool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.swapool.servers import EngineName
    from bench.swapool.trace import Turn
    from epd_operator.api.swa_pool import PoolMode

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
    [*product(TTLS, WINDOWS[1:4], COPIES[:1]), *product((300.0,), (1000, 8000), COPIES[-1:])],
)
def test_the_pool_hits_as_often_as_predicted(trace: Sequence[Turn], ttl: float, windows: int, copies: int) -> None:
    cell = replay(trace, ttl, windows, copies)
    assert cell.returning == 2141 * copies
    assert abs(cell.difference) <= POINTS


@pytest.mark.nightly
@pytest.mark.parametrize(("ttl", "windows", "copies"), [*product(TTLS, WINDOWS, COPIES)])
def test_all_cells_hit_as_often_as_predicted(trace: Sequence[Turn], ttl: float, windows: int, copies: int) -> None:
    assert abs(replay(trace, ttl, windows, copies).difference) <= POINTS


@pytest.mark.parametrize(
    ("name", "mode", "stores"),
    [
        *(("memory", "InProcess", 1), ("valkey", "Valkey", 1)),
        pytest.param("mooncake", "Mooncake", 2, marks=pytest.mark.nightly),
    ],
)
def test_a_full_pool_holds_what_is_predicted(tmp_path: Path, name: EngineName, mode: PoolMode, stores: int) -> None:
    space = Namespace("m", "", "", "", "", 0, 20, 128, 528, 64)
    memory, rows = 192 << 20, bytes(space.largest)
    keys = [Key(space, hashlib.sha256(b"%d" % number).digest(), 1024) for number in range(260)]
    with servers.running(name, memory, tmp_path) as place:
        pool = WindowPool(engine(place.address), space.largest)
        # The first one connects, which takes longer than the others.
        while pool.get(keys[0], 5.0) is None:
            pool.put(keys[0], rows, 600)
            assert pool.drain(20)
        for key in keys:
            pool.put(key, rows, 600)
            assert pool.drain(20)
        alive = sum(pool.get(key, 5.0) is not None for key in keys)
        pool.close()
    assert alive == pytest.approx(pool_sizing.held(mode, memory // stores, space.largest, stores), rel=0.07)


# Latency.


def test_points_are_of_all_clients_and_ratios_of_a_round() -> None:
    def times(factor: float) -> Any:
        mine = {"client": [[2.0, 4.0], [6.0, 6.0]], "bare": [[1.0, 1.0], [2.0, 2.0]], "tcp": [[1.0]] * 2}
        rounds = {way: [[factor * call for call in calls] for calls in each] for way, each in mine.items()}
        return {(way, kind): rounds.get(way, [[1.0]] * 2) for way in latency.WAYS["valkey"] for kind in ("put", "get")}

    actual = {(point.way, point.operation): point for point in points("valkey", 6_000_000, 2, [times(1.0), times(1.0)])}
    client = actual["client", "get"]
    assert client.milliseconds == Spread(4500.0, 3000.0, 6000.0)
    assert client.megabytes == Spread(3.0, 2.0, 4.0)
    assert client.ratio == Spread(3.0, 3.0, 3.0)
    assert client.slowest == 6000.0
    assert actual["bare", "get"].ratio is actual["copy", "put"].ratio is None
    assert client.to_json()["ratio"] == {"median": 3.0, "low": 3.0, "high": 3.0}


@pytest.mark.parametrize("name", ["memory", "valkey", pytest.param("mooncake", marks=pytest.mark.nightly)])
def test_real_pools_are_timed_every_way(tmp_path: Path, name: EngineName) -> None:
    lines: list[str] = []
    actual = list(latency.measure(name, Effort(2, 0.01, (65536,), (2,)), tmp_path, lines.append))
    assert [(point.way, point.operation) for point in actual] == [*product(latency.WAYS[name], latency.OPERATIONS)]
    assert all(point.milliseconds.low > 0 and point.slowest >= point.milliseconds.low for point in actual)
    assert lines == [f"{name}, 65,536 bytes, 2 clients"]


def test_a_client_that_fails_fails_the_bench() -> None:
    place = Place("valkey", "carrier-pigeon:", 1, 1, 65536)
    with pytest.raises(RuntimeError, match=r"valkey, client [01]: ValueError.*not the address of a window pool"):
        latency.crew(place, 2, Effort(1, 0.01), 2)


def test_a_frozen_server_does_not_answer_and_a_thawed_one_does(tmp_path: Path) -> None:
    with servers.running("valkey", 64 << 20, tmp_path) as place:
        client = valkey.Valkey(port=place.port, socket_timeout=0.3)
        assert client.ping()
        place.servers[0].freeze()
        with pytest.raises(valkey.exceptions.TimeoutError):
            client.ping()
        place.servers[0].thaw()
        assert client.ping()
        client.connection_pool.disconnect()


def test_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(NotStarted, match="at least 16777216"), servers.running("valkey", 1, tmp_path):
        pass


# A returning turn.


@pytest.mark.nightly
def test_turns_on_a_real_server(tmp_path: Path) -> None:
    actual = returning.measure(returning.Effort(1, (256,)), tmp_path, lambda _: None)
    assert [point.state for point in actual] == list(returning.STATES)
    assert all(point.milliseconds.low > 0 for point in actual)


# The command.


def results() -> Results:
    spread = Spread(2.0, 1.0, 3.0)
    moved = tuple(
        latency.Point(name, way, kind, size, clients, spread, 4.0, spread, spread if way == "client" else None)
        for name in latency.ENGINES
        for size, clients in product((65536, 1_351_680), (1, 8))
        for way, kind in product(latency.WAYS[name], latency.OPERATIONS)
    )
    waited = tuple(returning.Point(state, tokens, spread) for tokens, state in product((64, 256), returning.STATES))
    hits = tuple(Cell(ttl, 1000, copies, 3.0 * copies, 10, 0.5, 0.49) for ttl, copies in product((60.0, 300.0), (1, 2)))
    return Results(moved, waited, hits)


def test_tables() -> None:
    lines = table.text(results()).splitlines()
    assert lines[0].split()[:4] == ["engine", "bytes", "clients", "client"]
    memory = next(line for line in lines if line.startswith("  memory 1,351,680       8 get"))
    assert memory.split() == [
        *("memory", "1,351,680", "8", "get", "2.000", "(1.000-3.000)", "2", "2.000", "(1.000-3.000)", "2"),
        *("2.00", "(1.00-3.00)"),
    ]
    assert next(line for line in lines if line.startswith("    256")).split() == ["256", *["2.0", "(1.0-3.0)"] * 5]
    assert lines[lines.index("6.0 turns/s") + 2].split() == ["60", "s", "50.0", "/", "49.0"]
    assert "greatest difference: 1.00 points" in lines


def test_only_what_was_measured_is_shown() -> None:
    reported = table.text(Results(hits=results().hits))
    assert table.HITS in reported
    assert table.LATENCY not in reported
    assert table.TURNS not in reported


def test_the_plots_are_the_same_for_the_same_figures(tmp_path: Path) -> None:
    written = [list(figure.draw(results(), tmp_path / name)) for name in ("a", "b")]
    assert [path.name for path in written[0]] == ["swapool-latency.svg", "swapool-turns.svg", "swapool-hits.svg"]
    for one, other in zip(*written, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert list(figure.draw(Results(), tmp_path)) == []


def test_options() -> None:
    usual, quick = parse([]), parse(["--quick"])
    assert (usual.parts, usual.plots, quick.plots) == (("latency", "turns", "hits"), PLOTS, None)
    assert parse(["--only", "hits", "latency"]).parts == ("latency", "hits")


@pytest.mark.parametrize("words", [["--only", "speed"], ["--plots"]])
def test_bad_options(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)


def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "hits", "--quick", "--json", "--plots", str(tmp_path)]) == 0
    captured = json.loads(capsys.readouterr().out)
    assert (captured["latency"], captured["turns"], len(captured["hits"])) == ([], [], 4)
    assert all(abs(cell["measured"] - cell["predicted"]) <= POINTS / 100 for cell in captured["hits"])
    assert [path.name for path in tmp_path.iterdir()] == ["swapool-hits.svg"]

"""Our own lines among an engine's metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from epd_workers.registrar.engine_metrics import EngineMetrics, Plugin, parse
from epd_workers.registrar.server_info import Decoder, Encoder
from tests.support.registrar_values import PAGE


def test_replay_and_plugin_are_read() -> None:
    answer = parse(PAGE)
    assert answer.plugin == Plugin("0.5.23.1", "prefill")
    assert answer.replay is not None
    assert answer.replay.decoder == Decoder(active=True, reason="", preset="", rows_run=5120, rows_skipped=3072)
    assert answer.replay.encoder == Encoder(active=False, reason="TurnedOff", rows_replayed=0)


@pytest.mark.parametrize("page", ["", "sglang:num_running_reqs 1.0\n", "no metrics at all {{{\n"])
def test_a_page_without_ours_says_nothing(page: str) -> None:
    assert parse(page) == EngineMetrics()


def test_a_malformed_line_of_ours_is_told() -> None:
    with pytest.raises(ValueError, match=r"."):
        parse('epd_replay_active{half="decoder" 1.0\n')


def test_processes_that_disagree_about_the_plugin_name_none() -> None:
    assert parse(PAGE + 'epd_plugin_info{version="0.5.23.2",role="prefill"} 1.0\n').plugin is None


def test_one_half_alone_is_no_report() -> None:
    assert parse('epd_replay_active{half="decoder",reason=""} 1.0\n').replay is None


@given(st.lists(st.tuples(st.integers(0, 2**40), st.booleans()), min_size=1, max_size=4))
def test_the_processes_of_an_engine_are_one_report(ranks: list[tuple[int, bool]]) -> None:
    registry = CollectorRegistry()
    rows = Counter("epd_replay_layer_rows", "x", ["half", "state", "pid"], registry=registry)
    active = Gauge("epd_replay_active", "x", ["half", "reason", "pid"], registry=registry)
    for rank, (count, runs) in enumerate(ranks):
        rows.labels("decoder", "run", rank).inc(count)
        active.labels("decoder", "" if runs else "NoLongPromptYet", rank).set(runs)
        active.labels("encoder", "TurnedOff", rank).set(0)
    replay = parse(generate_latest(registry).decode()).replay
    assert replay is not None
    assert replay.decoder.rows_run == sum(count for count, _ in ranks)
    runs = any(runs for _, runs in ranks)
    assert (replay.decoder.active, replay.decoder.reason) == (runs, "" if runs else "NoLongPromptYet")

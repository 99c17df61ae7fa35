from __future__ import annotations

import pytest
from prometheus_client import REGISTRY, generate_latest

import epd_sglang
from epd_sglang.announcement import announce
from epd_workers.registrar import engine_metrics
from epd_workers.registrar.engine_metrics import Plugin


@pytest.mark.parametrize(("mode", "role"), [("null", "aggregated"), ("prefill", "prefill"), ("decode", "decode")])
def test_the_registrar_reads_what_is_announced(mode: str, role: str) -> None:
    names = set(REGISTRY._names_to_collectors)
    try:
        announce(mode)
        page = generate_latest(REGISTRY).decode()
        assert engine_metrics.parse(page).plugin == Plugin(epd_sglang.__version__, role)
    finally:
        for name in {"epd_plugin_info"} - names:
            REGISTRY.unregister(REGISTRY._names_to_collectors[name])

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WRITER = """
from epd_workers.swapool.metrics import Metrics
metrics = Metrics()
metrics.watch({"get": lambda: 1.0, "put": lambda: 0.0}, lambda: 3.0)
metrics.sample()
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_gauges_are_seen_from_another_process(tmp_path: Path) -> None:
    """An engine's pages come from another process than its pool is in."""
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    page = subprocess.run(
        [sys.executable, "-c", WRITER], env=environ, capture_output=True, text=True, check=True
    ).stdout
    lines = page.splitlines()
    assert 'swapool_breaker_open{operation="get"} 1.0' in lines
    assert 'swapool_breaker_open{operation="put"} 0.0' in lines
    assert "swapool_bounce_in_use 3.0" in lines
    assert 'swapool_get_total{result="hit"} 0.0' in lines

"""The metrics, which the engine's own `/metrics` shows.

The engine writes metrics of all its processes into one folder, and so does this: prometheus_client goes by the
environment that the scheduler process inherits. Source: SGLang 0.5.23, srt/utils/common.py:2825.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

if TYPE_CHECKING:
    from epd_sglang.replay_metrics.tally import Reason, Work

Half = Literal["encoder", "decoder"]


class Metrics:
    """Counts of one scheduler process.

    Args:
        registry: Where they are found in a process that shares none; one of their own by default.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = CollectorRegistry() if registry is None else registry
        self._rows = Counter(
            "epd_replay_layer_rows",
            "Rows times layers of prompts that ran, and that bounded replay spared",
            ["half", "state"],
            registry=registry,
        )
        self._active = Gauge(
            "epd_replay_active",
            "Whether bounded replay has made a difference, or why not",
            ["half", "reason"],
            registry=registry,
            multiprocess_mode="max",
        )

    def worked(self, half: Half, work: Work) -> None:
        """Count a step."""
        self._rows.labels(half, "run").inc(work.run)
        self._rows.labels(half, "skipped").inc(work.skipped)

    def explain(self, half: Half, reason: Reason) -> None:
        """Say why replay has made no difference so far; empty if it has."""
        self._active.labels(half, reason).set(0.0 if reason else 1.0)

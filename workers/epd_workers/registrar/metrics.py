"""The registrar's metrics for Prometheus."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from epd_workers.registrar.pod import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable

STATES = ("ready", "registering", "not_ready", "draining", "refused")


class Metrics:
    """One process's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._workers = Gauge(
            "registrar_workers", "Engine pods by role and state.", ["role", "state"], registry=self._registry
        )
        self.sync = Histogram(
            "registrar_sync_seconds",
            "Duration of one pass over pods, router and encoder directories.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self._registry,
        )
        self._errors = Counter("registrar_errors", "Failed calls by target.", ["target"], registry=self._registry)
        self._writes = Counter("registrar_writes", "Membership changes sent.", ["action"], registry=self._registry)
        self.pods_seen = Gauge(
            "registrar_pods_last_contact_timestamp_seconds",
            "When the API server was last heard, Unix seconds.",
            registry=self._registry,
        )
        for target in ("kubernetes", "router", "directory", "engine", "probe"):
            self._errors.labels(target)
        for action in ("add", "remove", "register", "unregister"):
            self._writes.labels(action)
        self.observe(())

    def error(self, target: str) -> None:
        """Count a failed call."""
        self._errors.labels(target).inc()

    def wrote(self, action: str) -> None:
        """Count a membership change."""
        self._writes.labels(action).inc()

    def observe(self, workers: Iterable[tuple[str, str]]) -> None:
        """Replace the worker gauges by a tally of (role, state)."""
        tally = Tally(workers)
        for role in ROLES:
            for state in STATES:
                self._workers.labels(role, state).set(tally[role, state])

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)

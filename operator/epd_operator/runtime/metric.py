"""Prometheus metrics, under controller-runtime's names so that its dashboards and alerts carry over."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING, Any, Final, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

CONTROLLER: Final = "deepseekv41deployment"
SHORT: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Everything that is counted; one instance a process."""

    def __init__(self) -> None:
        cast("Any", disable_created_metrics)()  # a timestamp beside every counter, which nobody reads
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.reconciles = Counter(
            "controller_runtime_reconcile",
            "Reconciliations by result (success, requeue_after, error).",
            ["controller", "result"],
            registry=registry,
        )
        self.reconcile_errors = Counter(
            "controller_runtime_reconcile_errors", "Failed reconciliations.", ["controller"], registry=registry
        )
        self.reconcile_seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Seconds per reconciliation.",
            ["controller"],
            buckets=SHORT,
            registry=registry,
        )
        self.workers = Gauge(
            "controller_runtime_active_workers", "Reconciliations in progress.", ["controller"], registry=registry
        )
        self.requests = Counter(
            "rest_client_requests", "Calls to the API server.", ["code", "method", "host"], registry=registry
        )
        self.request_seconds = Histogram(
            "rest_client_request_duration_seconds",
            "Seconds until the API server's answer began.",
            ["verb", "host"],
            buckets=SHORT,
            registry=registry,
        )
        self.leader = Gauge(
            "leader_election_master_status", "1 while this process holds the lease.", ["name"], registry=registry
        )
        self.applies = Counter(
            "epd_apply",
            "Objects reconciled by kind and outcome (created, changed, conflict, failed, pruned).",
            ["kind", "outcome"],
            registry=registry,
        )
        self.loop_lag = Gauge(
            "event_loop_lag_seconds", "How late the event loop woke a sleeping task last.", registry=registry
        )
        self.queue = QueueMeter(registry)

    def watch_ages(self, ages: Callable[[], Mapping[str, float]]) -> None:
        """Export the age of the last sign of life of every watch, in seconds, read at scrape time."""
        self.registry.register(_Ages(ages))

    def conditions(self, objects: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Export how many custom resources have each condition at each status, without a label per resource."""
        self.registry.register(_Conditions(objects))


class QueueMeter:
    """client-go's workqueue metrics for our one queue.

    Args:
        registry: Takes the metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._depth = Gauge("workqueue_depth", "Keys in line.", ["name"], registry=registry).labels(CONTROLLER)
        self._adds = Counter("workqueue_adds", "Keys put in line.", ["name"], registry=registry).labels(CONTROLLER)
        self._retries = Counter("workqueue_retries", "Keys put back.", ["name"], registry=registry).labels(CONTROLLER)
        self._waited = Histogram(
            "workqueue_queue_duration_seconds", "Seconds in line.", ["name"], buckets=SHORT, registry=registry
        ).labels(CONTROLLER)
        self._worked = Histogram(
            "workqueue_work_duration_seconds", "Seconds of work.", ["name"], buckets=SHORT, registry=registry
        ).labels(CONTROLLER)

    def depth(self, value: int) -> None:
        """Keys in line."""
        self._depth.set(value)

    def added(self) -> None:
        """A key entered the line."""
        self._adds.inc()

    def retried(self) -> None:
        """A key was put back after a failure."""
        self._retries.inc()

    def waited(self, seconds: float) -> None:
        """A key left the line after this long."""
        self._waited.observe(seconds)

    def worked(self, seconds: float) -> None:
        """A key was worked on for this long."""
        self._worked.observe(seconds)


class _Ages(Collector):
    def __init__(self, ages: Callable[[], Mapping[str, float]]) -> None:
        self._ages = ages

    @override
    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "watch_last_event_age_seconds", "Seconds since a watch last showed life.", labels=["kind"]
        )
        for kind, age in sorted(self._ages().items()):
            family.add_metric([kind], age)
        yield family


class _Conditions(Collector):
    def __init__(self, objects: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        self._objects = objects

    @override
    def collect(self) -> Iterable[GaugeMetricFamily]:
        tally = Tally(
            (str(condition.get("type")), str(condition.get("status")))
            for obj in self._objects()
            for condition in (obj.get("status") or {}).get("conditions") or ()
        )
        family = GaugeMetricFamily(
            "epd_deployments", "Custom resources by condition and its status.", labels=["condition", "status"]
        )
        for (condition, status), count in sorted(tally.items()):
            family.add_metric([condition, status], count)
        yield family

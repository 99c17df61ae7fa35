"""Prometheus metrics under SGLang's names, so that dashboards and scalers work with either engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from epd_workers.reference.serving.record import Leg

SECONDS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 80, 160)
WINDOW_SECONDS = 1.0
MILLISECONDS = (1, 5, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000)
# SGLang's stage names for the stages that have a counterpart there.
STAGES = {
    "peer_wait": {"prefill": "prefill_bootstrap", "decode": "decode_bootstrap"},
    "prefill": {"prefill": "prefill_forward", "aggregated": "prefill_forward"},
    "transfer": {"prefill": "prefill_transfer_kv_cache", "decode": "decode_transferred"},
    "route": {"decode": "decode_prepare"},
}


class Throughput:
    """The rate of a growing count over the last window that ended, which is one second or longer."""

    def __init__(self) -> None:
        self._count = 0
        self._since = time.monotonic()
        self._rate = 0.0

    def read(self, count: int) -> float:
        """Return the rate per second, given the count as it is now."""
        elapsed = time.monotonic() - self._since
        if elapsed >= WINDOW_SECONDS:
            self._rate = (count - self._count) / elapsed
            self._count, self._since = count, self._since + elapsed
        return self._rate


class Metrics:
    """All metrics of one server.

    Attributes:
        registry: Where they are; parts that count for themselves add theirs.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._label = {"model_name": model}
        self._gauges = _Gauges(self._label)
        self.registry.register(self._gauges)
        counter, histogram = self._counter, self._histogram
        self._requests = counter("num_requests", "Requests answered")
        self._aborted = counter("num_aborted_requests", "Requests whose client went away")
        self._failed = counter("num_transfer_failed_reqs", "Requests that failed in the transfer of pages")
        self._prompt = counter("prompt_tokens", "Prompt tokens, image placeholders included")
        self._generation = counter("generation_tokens", "Tokens generated")
        self._first = histogram("time_to_first_token_seconds", "From the request to its first token", SECONDS)
        self._latency = histogram("e2e_request_latency_seconds", "From the request to its end", SECONDS)
        self._transfer = histogram("kv_transfer_latency_ms", "Transfer of one prompt's pages", MILLISECONDS)
        self._stage = Histogram(
            "sglang:per_stage_req_latency_seconds",
            "Time in each stage",
            ("model_name", "stage"),
            buckets=SECONDS,
            registry=self.registry,
        )

    def finished(self, legs: Iterable[Leg], seconds: float) -> None:
        """Count an answered request."""
        self._requests.inc()
        self._latency.observe(seconds)
        for leg in legs:
            self._prompt.inc(leg.prompt_tokens)
            self._generation.inc(leg.completion_tokens)
            self._observe(leg)

    def aborted(self) -> None:
        """Count a request whose client went away."""
        self._aborted.inc()

    def transfer_failed(self) -> None:
        """Count a request whose pages did not come over."""
        self._failed.inc()

    def exposition(self, gauges: Mapping[str, float], families: Sequence[Metric] = ()) -> bytes:
        """Return all metrics in the text format, with ``gauges`` and ``families`` as they are now."""
        self._gauges.values, self._gauges.families = gauges, families
        return generate_latest(self.registry)

    def _observe(self, leg: Leg) -> None:
        if "first_token" in leg.stages:
            self._first.observe(leg.stages["first_token"] / 1000)
        if "transfer" in leg.stages:
            self._transfer.observe(leg.stages["transfer"])
        for stage, milliseconds in leg.stages.items():
            name = STAGES.get(stage, {}).get(leg.role)
            if name is not None:
                self._stage.labels(**self._label, stage=name).observe(milliseconds / 1000)

    def _counter(self, name: str, text: str) -> Any:
        return Counter(f"sglang:{name}", text, ("model_name",), registry=self.registry).labels(**self._label)

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Any:
        family = Histogram(f"sglang:{name}", text, ("model_name",), buckets=tuple(buckets), registry=self.registry)
        return family.labels(**self._label)


class _Gauges(Collector):
    """Gauges and whole families that are computed for each exposition."""

    def __init__(self, label: dict[str, str]) -> None:
        self.values: Mapping[str, float] = {}
        self.families: Sequence[Metric] = ()
        self._label = label

    @override
    def collect(self) -> Iterable[Metric]:
        """Return one family per gauge, and the others."""
        for name, value in self.values.items():
            family = GaugeMetricFamily(f"sglang:{name}", name.replace("_", " "), labels=list(self._label))
            family.add_metric(list(self._label.values()), value)
            yield family
        yield from self.families

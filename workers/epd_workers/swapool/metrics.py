"""A pool's metrics for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

Got = Literal["hit", "miss", "expired", "mismatch", "timeout", "breaker", "busy", "error"]
Put = Literal["stored", "full", "taken", "timeout", "breaker", "busy", "error"]
Operation = Literal["get", "put"]
SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1)
AGES: Final = (1, 2, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1800)


class Metrics:
    """Counts of one process's pool.

    Every lookup counts once under its verdict. An answer that comes after its caller has gone counts once more, as
    `late`.

    Args:
        registry: Where they are found; one of their own by default.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry = CollectorRegistry() if registry is None else registry
        self._got = Counter("swapool_get", "Lookups by result.", ["result"], registry=registry)
        self._put = Counter("swapool_put", "Windows handed to the pool, by result.", ["result"], registry=registry)
        self._seconds = Histogram(
            "swapool_get_seconds", "From a lookup's start to its verdict.", buckets=SECONDS, registry=registry
        )
        self._bytes = Counter("swapool_bytes", "Bytes of windows moved.", ["dir"], registry=registry)
        self._breaker = Gauge(
            "swapool_breaker_open",
            "1 while the server is not asked.",
            ["operation"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._bounce = Gauge(
            "swapool_bounce_in_use",
            "Transfer buffers that a call owns.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._sources: tuple[dict[Operation, Callable[[], float]], Callable[[], float]] = {}, float
        self._replayed = Counter(
            "swapool_replay_tokens", "Tokens that ran again to rebuild windows.", registry=registry
        )
        self._avoided = Counter(
            "swapool_replay_avoided_tokens", "Tokens that need not run again thanks to a window.", registry=registry
        )
        self._age = Histogram("swapool_window_age_seconds", "Age of adopted windows.", buckets=AGES, registry=registry)
        for result in (*get_args(Got), "late"):
            self._got.labels(result)
        for result in get_args(Put):
            self._put.labels(result)
        for direction in get_args(Operation):
            self._bytes.labels(direction)

    def watch(self, breakers: dict[Operation, Callable[[], float]], bounce: Callable[[], float]) -> None:
        """Read the gauges from these whenever they are asked for."""
        self._sources = breakers, bounce
        for operation, value in breakers.items():
            self._breaker.labels(operation).set_function(value)
        self._bounce.set_function(bounce)

    def sample(self) -> None:
        """Write the gauges down for other processes, which cannot ask: prometheus_client's multiprocess mode."""
        breakers, bounce = self._sources
        for operation, value in breakers.items():
            self._breaker.labels(operation).set(value())
        self._bounce.set(bounce())

    def rest(self) -> None:
        """Forget the pool that is gone: nothing is open or in use."""
        self.watch({"get": float, "put": float}, float)

    def got(self, result: Got, seconds: float) -> None:
        """Count a lookup's verdict."""
        self._got.labels(result).inc()
        self._seconds.observe(seconds)

    def hit(self, size: int, age: float) -> None:
        """Count what a hit brought."""
        self._bytes.labels("get").inc(size)
        self._age.observe(age)

    def late(self) -> None:
        """Count an answer that nobody waited for any more."""
        self._got.labels("late").inc()

    def put(self, result: Put, size: int = 0) -> None:
        """Count a window handed in, and its bytes if they were stored."""
        self._put.labels(result).inc()
        if size:
            self._bytes.labels("put").inc(size)

    def replayed(self, tokens: int) -> None:
        """Count tokens that ran again."""
        self._replayed.inc(tokens)

    def avoided(self, tokens: int) -> None:
        """Count tokens that did not have to."""
        self._avoided.inc(tokens)

"""What the disk tier counts."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.metrics_core import Metric

Got = Literal["hit", "miss", "expired", "mismatch", "error", "timeout", "busy"]
Put = Literal["stored", "known", "full", "busy", "error"]
Why = Literal["size", "age"]


@dataclass(frozen=True)
class DiskStats:
    """Counts since the start, and the state of this moment.

    Attributes:
        stored: Pages written.
        read: Pages handed out.
        dropped: Pages that were to be written and were not, for want of room or for a fault.
        evicted: Pages that this server removed for room or for their age.
        bytes: What the folder holds as far as this server knows, all servers' pages together.
        fault: What is wrong with the folder, in one word; empty while nothing is.
    """

    stored: int
    read: int
    dropped: int
    evicted: int
    bytes: int
    fault: str


class Tally(Collector):
    """Counts of one process's disk tier, as Prometheus reads them.

    A page looked for counts once under its result; one that nobody waited for any more as `timeout`, and a whole fetch
    that found the readers occupied as one `busy`.

    Args:
        held: Bytes in the folder.
    """

    def __init__(self, held: Callable[[], int]) -> None:
        self._held = held
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def got(self, result: Got) -> None:
        """Count a page looked for."""
        self._count("get", result)

    def put(self, result: Put) -> None:
        """Count a page handed in."""
        self._count("put", result)

    def moved(self, direction: Literal["get", "put"], size: int) -> None:
        """Count bytes of pages."""
        self._count("bytes", direction, size)

    def evicted(self, why: Why, count: int) -> None:
        """Count pages removed."""
        self._count("evicted", why, count)

    def stats(self, fault: str) -> DiskStats:
        """Return what has been counted."""
        with self._lock:
            counts = self._counts.copy()
        return DiskStats(
            stored=counts["put", "stored"],
            read=counts["get", "hit"],
            dropped=sum(counts["put", result] for result in ("full", "busy", "error")),
            evicted=sum(counts["evicted", why] for why in get_args(Why)),
            bytes=self._held(),
            fault=fault,
        )

    @override
    def collect(self) -> Iterable[Metric]:
        """Return all families, every label there from the start."""
        with self._lock:
            counts = self._counts.copy()
        families = (
            ("get", "Pages looked for on disk, by result.", "result", get_args(Got)),
            ("put", "Pages handed to the disk tier, by result.", "result", get_args(Put)),
            ("bytes", "Bytes of pages moved.", "dir", ("get", "put")),
            ("evicted", "Pages removed from disk.", "reason", get_args(Why)),
        )
        for name, text, label, values in families:
            family = CounterMetricFamily(f"kv_disk_{name}", text, labels=[label])
            for value in values:
                family.add_metric([value], counts[name, value])
            yield family
        yield GaugeMetricFamily("kv_disk_held_bytes", "What the folder holds, as last seen.", value=self._held())

    def _count(self, name: str, label: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name, label] += count

"""The figures as text and as JSON."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from bench.epd.load import KINDS
from bench.host import host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.epd.load import Kind, Sample

PERCENTILES: Final = (50, 90, 99)


def note() -> str:
    """What the figures do not show."""
    return (
        f"Router, servers and client share the {os.cpu_count()} CPU cores of this machine, so P/D and E/P/D cannot be\n"
        "faster here than one server: the figures show what transfers and more processes cost. Percentiles of the\n"
        "time to first token are over the requests of a kind, those of the inter-token latency over all gaps between\n"
        "its tokens. CPU s: user and system seconds of router and servers."
    )


@dataclass(frozen=True)
class Latency:
    """Percentiles of some seconds."""

    median: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """Of at least one value, interpolated linearly."""
        return cls(*(float(value) for value in np.percentile(seconds, PERCENTILES)))

    def to_json(self) -> dict[str, float]:
        """The same in milliseconds, rounded."""
        return {f"{name}_ms": round(1000 * value, 2) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Result:
    """One topology's run.

    Attributes:
        topology: Its name.
        samples: Every request's.
        cpu_seconds: Of router and servers, while the requests ran.
        seconds: From the start to the last answer.
    """

    topology: str
    samples: tuple[Sample, ...]
    cpu_seconds: float
    seconds: float

    @property
    def faults(self) -> list[str]:
        """What went wrong."""
        return [sample.fault for sample in self.samples if sample.fault]

    @property
    def cpu_per_request(self) -> float:
        """CPU seconds of a request."""
        return self.cpu_seconds / len(self.samples)

    def of(self, kind: Kind) -> list[Sample]:
        """The whole answers of a kind."""
        return [sample for sample in self.samples if sample.kind == kind and not sample.fault]

    def first(self, kind: Kind) -> Latency | None:
        """Time to first token; None if nothing was answered."""
        times = [sample.first for sample in self.of(kind)]
        return Latency.of(times) if times else None

    def gap(self, kind: Kind) -> Latency | None:
        """Inter-token latency; None if nothing was answered, or with a single token."""
        gaps = [gap for sample in self.of(kind) for gap in sample.gaps]
        return Latency.of(gaps) if gaps else None

    def to_json(self) -> dict[str, Any]:
        """Every figure, the single requests' too."""
        return {
            "topology": self.topology,
            "seconds": round(self.seconds, 2),
            "cpu_seconds_per_request": round(self.cpu_per_request, 3),
            "faults": self.faults,
            "kinds": {kind: self._kind(kind) for kind in KINDS},
        }

    def _kind(self, kind: Kind) -> dict[str, Any]:
        first, gap, samples = self.first(kind), self.gap(kind), self.of(kind)
        return {
            "answered": len(samples),
            "time_to_first_token": first and first.to_json(),
            "inter_token_latency": gap and gap.to_json(),
            "prompt_tokens": [sample.prompt_tokens for sample in samples],
            "first_ms": [round(1000 * sample.first, 2) for sample in samples],
        }


_HEAD: Final = (
    ("", "", "", "time to first token, ms", "", "", "inter-token latency, ms", "", "", "CPU s"),
    ("topology", "kind", "answered", "median", "p90", "p99", "median", "p90", "p99", "a request"),
)
_WIDTHS: Final = (-11, -6, 8, 8, 8, 8, 9, 8, 8, 10)


def table(results: Sequence[Result], load: str) -> str:
    """A line for each topology and kind; `load` says what was sent."""
    lines = [load, _head(), _row(_HEAD[1])]
    for result in results:
        for kind in KINDS:
            latencies = [result.first(kind), result.gap(kind)]
            cells = [result.topology, kind, f"{len(result.of(kind))} of {sum(s.kind == kind for s in result.samples)}"]
            for latency in latencies:
                cells += ["-"] * 3 if latency is None else [f"{1000 * value:.1f}" for value in vars(latency).values()]
            lines.append(_row([*cells, f"{result.cpu_per_request:.2f}"]))
    lines += [f"{result.topology}: {fault}" for result in results for fault in dict.fromkeys(result.faults)]
    return "\n".join([*lines, "", note()])


def document(results: Sequence[Result], load: dict[str, Any]) -> dict[str, Any]:
    """Every figure, what was sent, and where."""
    return {"machine": host(), "note": note(), "load": load, "topologies": [result.to_json() for result in results]}


def _head() -> str:
    """The first line of the head, each title over the first of its three columns."""
    widths = [abs(width) for width in _WIDTHS]
    before = sum(widths[:3]) + 3
    first, second = _HEAD[0][3].ljust(sum(widths[3:6]) + 3), _HEAD[0][6].ljust(sum(widths[6:9]) + 3)
    return " " * before + " " + first + " " + second + _HEAD[0][9].rjust(widths[9] - 1)


def _row(cells: Sequence[str]) -> str:
    aligned = (c.ljust(-w) if w < 0 else c.rjust(w) for c, w in zip(cells, _WIDTHS, strict=True))
    return " ".join(aligned).rstrip()

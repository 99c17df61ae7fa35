"""What a pod reports in ``GET /metrics`` where ``/server_info`` has no report of ours: replay, and our plugin. Pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from epd_workers.registrar.server_info import LARGEST, Decoder, Encoder, Replay

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.samples import Sample

ROWS = "epd_replay_layer_rows_total"
ACTIVE = "epd_replay_active"
PLUGIN = "epd_plugin_info"
_OURS = (ROWS, ACTIVE, PLUGIN)
_REASON = re.compile(r"([A-Z][A-Za-z0-9]{0,63})?")
_WORD = re.compile(r"[A-Za-z0-9._+-]{1,64}")


@dataclass(frozen=True)
class Plugin:
    """The plugin that runs in one engine.

    Attributes:
        version: Its version.
        role: The role that it found the engine in.
    """

    version: str
    role: str

    def document(self) -> dict[str, str]:
        """As `GET /state` spells it."""
        return asdict(self)


@dataclass(frozen=True)
class EngineMetrics:
    """What one pod's metrics say.

    Attributes:
        replay: Of bounded replay, summed over the engine's processes; None where they say nothing, or nothing usable.
            The metrics name no preset and count no replayed rows: these are empty and 0.
        plugin: The plugin; None where there is none, or its processes disagree about it.
    """

    replay: Replay | None = None
    plugin: Plugin | None = None


def parse(page: str) -> EngineMetrics:
    """Read a page in the Prometheus text format.

    Only the lines of our own metrics are read: an engine's page has thousands, and one that is malformed must not hide
    ours.

    Args:
        page: The whole page.

    Raises:
        ValueError: One of our own lines is malformed.
    """
    lines = [line for line in page.splitlines() if line.startswith(_OURS)]
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    samples = [sample for family in families for sample in family.samples]
    return EngineMetrics(_replay(samples), _plugin(samples))


def _replay(samples: Iterable[Sample]) -> Replay | None:
    samples = list(samples)
    if not any(sample.name == ACTIVE for sample in samples):
        return None
    decoder, encoder = (_activity(samples, half) for half in ("decoder", "encoder"))
    if decoder is None or encoder is None:
        return None
    run, skipped = (_rows(samples, "decoder", state) for state in ("run", "skipped"))
    return Replay(Decoder(*decoder, preset="", rows_run=run, rows_skipped=skipped), Encoder(*encoder, rows_replayed=0))


def _activity(samples: Iterable[Sample], half: str) -> tuple[bool, str] | None:
    """(active, reason): active where any process of the engine is; else the first reason by name."""
    mine = [s for s in samples if s.name == ACTIVE and s.labels.get("half") == half]
    if not mine:
        return None
    if any(sample.value > 0 for sample in mine):
        return True, ""
    reasons = sorted(reason for s in mine if (reason := s.labels.get("reason", "")) and _REASON.fullmatch(reason))
    return False, reasons[0] if reasons else ""


def _rows(samples: Iterable[Sample], half: str, state: str) -> int:
    """A counter, summed over the processes; what is no count adds nothing."""
    values = (
        s.value for s in samples if s.name == ROWS and (s.labels.get("half"), s.labels.get("state")) == (half, state)
    )
    return min(LARGEST, int(sum(value for value in values if 0 <= value <= LARGEST)))


def _plugin(samples: Iterable[Sample]) -> Plugin | None:
    plugins = {
        Plugin(version, role)
        for sample in samples
        if sample.name == PLUGIN and sample.value == 1
        for version, role in [(sample.labels.get("version", ""), sample.labels.get("role", ""))]
        if _WORD.fullmatch(version) and _WORD.fullmatch(role)
    }
    return plugins.pop() if len(plugins) == 1 else None

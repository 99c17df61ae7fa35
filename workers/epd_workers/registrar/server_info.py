"""What a prefill pod reports in ``GET /server_info``: whether it replays, and how its window pool does. Pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LARGEST = 2**63 - 1
_REASON = re.compile(r"([A-Z][A-Za-z0-9]{0,63})?")
_PRESET = re.compile(r"[A-Za-z0-9._-]{0,64}")
_ENGINE = re.compile(r"([a-z][a-z0-9-]{0,31})?")
Part = TypeVar("Part")


@dataclass(frozen=True)
class Decoder:
    """Replay of the decoder half in one pod.

    Attributes:
        active: It runs.
        reason: Why it does not, in one word; empty when it does.
        preset: Which split and window floor it follows.
        rows_run: Rows times layers computed since the engine's start.
        rows_skipped: Rows times layers that replay spared since then.
    """

    active: bool
    reason: str
    preset: str
    rows_run: int
    rows_skipped: int


@dataclass(frozen=True)
class Encoder:
    """Replay of the encoder half in one pod.

    Attributes:
        active: It runs.
        reason: Why it does not, in one word; empty when it does.
        rows_replayed: Rows before the ends of prefix hits that ran again since the engine's start.
    """

    active: bool
    reason: str
    rows_replayed: int


@dataclass(frozen=True)
class Replay:
    """What one pod reports about replay."""

    decoder: Decoder
    encoder: Encoder

    def document(self) -> dict[str, Any]:
        """As `GET /state` spells it."""
        decoder, encoder = self.decoder, self.encoder
        return {
            "decoder": {
                "active": decoder.active,
                "reason": decoder.reason,
                "preset": decoder.preset,
                "rowsRun": decoder.rows_run,
                "rowsSkipped": decoder.rows_skipped,
            },
            "encoder": {
                "active": encoder.active,
                "reason": encoder.reason,
                "rowsReplayed": encoder.rows_replayed,
            },
        }


@dataclass(frozen=True)
class SwaPool:
    """What one pod reports about the pool of windows that it uses.

    Attributes:
        engine: The kind of pool; empty when the pod does not know.
        fault: What is wrong with it, in one word; empty when nothing is.
        hits: Lookups that found their window, since the pool was configured.
        misses: Lookups that did not.
        stored: Windows that the pool took.
        dropped: Windows that it did not take.
    """

    engine: str
    fault: str
    hits: int
    misses: int
    stored: int
    dropped: int

    def document(self) -> dict[str, Any]:
        """As `GET /state` spells it."""
        return asdict(self)


@dataclass(frozen=True)
class ServerInfo:
    """What one pod reports.

    Attributes:
        replay: Of bounded replay; None if it reports nothing, or nothing usable.
        swa_pool: Of its window pool, likewise; also None where it uses none.
        faults: Which parts of it cannot be used, each with the rule that it breaks.
    """

    replay: Replay | None = None
    swa_pool: SwaPool | None = None
    faults: tuple[str, ...] = ()


class _Wrong(Exception):
    pass


def parse(info: object) -> ServerInfo:
    """Read the report out of `GET /server_info`; unknown keys are left out.

    A part with something missing, of the wrong type or beyond its bounds counts as not said, and does not take the
    other part with it.

    Args:
        info: The whole answer.
    """
    if not isinstance(info, dict):
        return ServerInfo()
    faults: list[str] = []
    replay = _read(info, "replay", _replay, faults)
    pool = _read(info, "swa_pool", _swa_pool, faults)
    return ServerInfo(replay, pool, tuple(faults))


def _read(info: Mapping[str, Any], name: str, read: Callable[[Any], Part], faults: list[str]) -> Part | None:
    """A part of the report; what is wrong with it is added to the faults."""
    if info.get(name) is None:
        return None
    try:
        return read(info[name])
    except _Wrong as error:
        faults.append(str(error))
        return None


def _replay(value: Any) -> Replay:
    replay = _object(value, "replay")
    decoder, encoder = (_object(replay.get(half), f"replay.{half}") for half in ("decoder", "encoder"))
    return Replay(
        Decoder(
            active=_truth(decoder, "replay.decoder.active"),
            reason=_text(decoder, "replay.decoder.reason", _REASON),
            preset=_text(decoder, "replay.decoder.preset", _PRESET),
            rows_run=_count(decoder, "replay.decoder.rows_run"),
            rows_skipped=_count(decoder, "replay.decoder.rows_skipped"),
        ),
        Encoder(
            active=_truth(encoder, "replay.encoder.active"),
            reason=_text(encoder, "replay.encoder.reason", _REASON),
            rows_replayed=_count(encoder, "replay.encoder.rows_replayed"),
        ),
    )


def _swa_pool(value: Any) -> SwaPool:
    pool = _object(value, "swa_pool")
    return SwaPool(
        engine=_text(pool, "swa_pool.engine", _ENGINE),
        fault=_text(pool, "swa_pool.fault", _REASON),
        hits=_count(pool, "swa_pool.hits"),
        misses=_count(pool, "swa_pool.misses"),
        stored=_count(pool, "swa_pool.stored"),
        dropped=_count(pool, "swa_pool.dropped"),
    )


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(f"{path} must be an object")
    return value


def _truth(part: Mapping[str, Any], path: str) -> bool:
    value = _last(part, path)
    if not isinstance(value, bool):
        raise _Wrong(f"{path} must be true or false")
    return value


def _text(part: Mapping[str, Any], path: str, form: re.Pattern[str]) -> str:
    value = _last(part, path)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise _Wrong(f"{path} must match {form.pattern}")
    return value


def _count(part: Mapping[str, Any], path: str) -> int:
    value = _last(part, path)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise _Wrong(f"{path} must be a whole number from 0 to {LARGEST}")
    return value


def _last(part: Mapping[str, Any], path: str) -> Any:
    return part.get(path.rpartition(".")[2])

"""What `epd explain` says of the pool of windows: how many it holds, and what share of returning turns finds theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from epd_operator.api.parser import parse
from epd_operator.cli import pool_sizing
from epd_operator.cli.render import Options, stored
from epd_operator.engines import lookup, validation
from epd_operator.engines.effective import effective

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epd_operator.api.swa_pool import PoolMode
    from epd_operator.cli.document import Document
    from epd_operator.cli.terminal import Style
    from epd_operator.engines.effective import Effective, EffectiveSwaPool

TTLS: Final = (60.0, 120.0, 180.0, 300.0, 600.0)
"""Seconds to compare the chosen time to live with."""

_NOTES: Final = (
    "hit: of the turns that come back to a conversation, the share that finds its window; the pauses are those of a",
    "public trace (kvcache-ai/Mooncake, FAST'25, conversations). A turn without its window replays its rows.",
)
_ALONE: Final = "Each prefill pod has a pool of its own: a turn that another pod serves misses."


@dataclass(frozen=True)
class Row:
    """One time to live.

    Attributes:
        seconds: That a window may be used for.
        chosen: Whether it is the one that the object asks for.
        hit_share: Of the returning turns, as long as memory suffices.
        turns_per_second: Up to which it does.
        hit_share_at_rate: Of the returning turns at the rate that was asked for; None if none was.
    """

    seconds: float
    chosen: bool
    hit_share: float
    turns_per_second: float
    hit_share_at_rate: float | None


@dataclass(frozen=True)
class Pool:
    """A pool explained.

    Attributes:
        memory: Of one server, or of one prefill pod, a quantity.
        servers: That hold windows; in process the prefill pods.
        window_bytes: Of one window: layers x rows x row_bytes.
        windows: That all servers hold together.
        windows_per_turn: That a turn leaves behind, on average.
        turns_per_second: That were asked for; None if none were.
    """

    mode: PoolMode
    memory: str
    servers: int
    layers: int
    rows: int
    row_bytes: int
    window_bytes: int
    windows: int
    windows_per_turn: float
    turns_per_second: float | None
    ttl: tuple[Row, ...]


def pool(document: Document, turns_per_second: float | None) -> Pool | None:
    """The pool of an accepted object; None where there is none.

    Args:
        document: The object.
        turns_per_second: Of the whole deployment, to calculate with.
    """
    parsed = parse(stored(document, Options()))
    version = validation.validate(document.data).version
    meaning = effective(parsed, lookup(parsed.spec.engine.type, version, parsed.spec.engine.plugins))
    return _pool(meaning, meaning.swa_pool, turns_per_second) if meaning.swa_pool is not None else None


def _pool(meaning: Effective, chosen: EffectiveSwaPool, rate: float | None) -> Pool:
    prefill = meaning.roles["prefill"]
    args = prefill.args if meaning.engine_type == "Reference" else _reference(meaning)
    window = pool_sizing.window(pool_sizing.PACKAGED if meaning.model_path is None else pool_sizing.RELEASED, args)
    rerun = window.rows if args.get("decoder-replay", "on") == "on" else 1
    # Only what lies outside of both halves' own memory reaches a prefill from a decode.
    answers = chosen.mode != "InProcess" and "kv-disk-path" in meaning.roles["decode"].args
    servers = prefill.replicas if chosen.mode == "InProcess" else chosen.stores
    capacity = pool_sizing.Capacity(
        servers * pool_sizing.held(chosen.mode, chosen.memory_bytes, window.bytes),
        pool_sizing.windows_per_turn(meaning.facts.page_size, rerun, 2 if answers else 1),
    )
    return Pool(
        mode=chosen.mode,
        memory=chosen.memory,
        servers=servers,
        layers=window.layers,
        rows=window.rows,
        row_bytes=window.row_bytes,
        window_bytes=window.bytes,
        windows=capacity.windows,
        windows_per_turn=round(capacity.per_turn, 3),
        turns_per_second=rate,
        ttl=tuple(_row(seconds, chosen.ttl, capacity, rate) for seconds in sorted({*TTLS, chosen.ttl})),
    )


def _reference(meaning: Effective) -> dict[str, str]:
    """What SGLang resolves, as flags of the Reference engine, which say what a window is made of."""
    return {"decoder-replay": "on" if meaning.facts.replay == "On" else "off"}


def _row(seconds: float, chosen: float, capacity: pool_sizing.Capacity, rate: float | None) -> Row:
    return Row(
        seconds=seconds,
        chosen=seconds == chosen,
        hit_share=round(pool_sizing.hit_share(seconds), 4),
        turns_per_second=round(capacity.highest_rate(seconds), 4),
        hit_share_at_rate=None if rate is None else round(capacity.hit_share(seconds, rate), 4),
    )


def lines(result: Pool, style: Style) -> Iterator[str]:
    """The same for people."""
    place = {"InProcess": "prefill pod", "Mooncake": "store"}.get(result.mode, "server")
    where = f"one {place} of" if result.servers == 1 else f"{result.servers} {place}s of"
    yield ""
    yield style("bold", f"pool of windows: {result.mode}")
    yield (
        f"    a window is {result.layers} layers x {result.rows} rows x {result.row_bytes} bytes = "
        f"{result.window_bytes:,} bytes"
    )
    yield (
        f"    {where} {result.memory} hold{'s' * (result.servers == 1)} {result.windows:,}; "
        f"a turn leaves {result.windows_per_turn:.2f} behind"
    )
    rate = result.turns_per_second
    asked = "" if rate is None else f"  hit at {rate:g} turns/s"
    yield style("bold", f"    {'ttl':>8}  {'hit':>6}  {'up to turns/s':>13}{asked}")
    for row in result.ttl:
        at = "" if row.hit_share_at_rate is None else f"  {row.hit_share_at_rate:>{len(asked) - 2}.1%}"
        mark = style("dim", "  spec.swaPool.ttl") if row.chosen else ""
        yield f"    {row.seconds:>7g}s  {row.hit_share:>6.1%}  {row.turns_per_second:>13,.1f}{at}{mark}"
    for note in (*_NOTES, *([_ALONE] if result.mode == "InProcess" else [])):
        yield style("dim", f"    {note}")

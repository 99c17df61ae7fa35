"""The figures as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.swapool.latency import OPERATIONS, WAYS
from bench.swapool.turn import PROMPT, STATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.spread import Spread
    from bench.swapool.latency import Point as Latency
    from bench.swapool.replay import Cell
    from bench.swapool.results import Results
    from bench.swapool.turn import Point as Turn

LATENCY: Final = """\
Milliseconds of a call, median of the rounds (least-greatest), and MB/s of all clients together. client: the pool's own,
which copies and checks what it gets; bare: the valkey library, or Mooncake's client in the same process; tcp: a socket
whose other end has the bytes ready; copy: into this process's own memory. All ways take turns in one run; clients are
processes; ratio: client to bare, in process to copy, of the medians of a round."""
TURNS: Final = f"""\
Milliseconds to the first token of a turn that adds so many tokens to a conversation of {PROMPT}: median
(least-greatest). no pool, miss and frozen: 128 rows are replayed. A hit spares them, except that with decoder replay
the last 128 tokens run in any case. frozen: the Valkey server is stopped; the first turn waits for the deadline, the
next asks nobody."""
HITS: Final = """\
Share of the returning turns that find their window, measured / predicted by `epd explain`, in per cent. Windows
that the pool holds in columns. The trace (kvcache-ai/Mooncake, FAST'25, conversations) as it is, and as several copies
side by side."""


def text(results: Results) -> str:
    """The parts that there are, each with what it means."""
    parts = []
    if results.latency:
        parts.append([*_latency(results.latency), "", LATENCY])
    if results.turns:
        parts.append([*_turns(results.turns), "", TURNS])
    if results.hits:
        parts.append([*_hits(results.hits), "", HITS])
    return "\n\n".join("\n".join(part) for part in parts)


def _latency(points: Sequence[Latency]) -> Iterator[str]:
    ways = WAYS["valkey"]
    head = ("engine", "bytes", "clients", "", *(way for each in ways for way in (each, "MB/s")), "ratio")
    widths = (8, 9, 7, 3, *(width for _ in ways for width in (22, 7)), 16)
    yield _row(head, widths)
    by_call = {(p.engine, p.size, p.clients, p.operation, p.way): p for p in points}
    for engine, size, clients in dict.fromkeys((p.engine, p.size, p.clients) for p in points):
        for operation in OPERATIONS:
            cells = []
            for way in ways:
                point = by_call.get((engine, size, clients, operation, way))
                cells += [_spread(point.milliseconds, 3), f"{point.megabytes.median:,.0f}"] if point else ["", ""]
            ratio = by_call[engine, size, clients, operation, "client"].ratio
            yield _row(
                (engine, f"{size:,}", f"{clients}", operation, *cells, _spread(ratio, 2) if ratio else ""), widths
            )


def _turns(points: Sequence[Turn]) -> Iterator[str]:
    widths = (7, *(22 for _ in STATES))
    yield _row(("tokens", *STATES), widths)
    by_turn = {(point.tokens, point.state): point.milliseconds for point in points}
    for tokens in dict.fromkeys(point.tokens for point in points):
        yield _row((f"{tokens}", *(_spread(by_turn[tokens, state], 1) for state in STATES)), widths)


def _hits(cells: Sequence[Cell]) -> Iterator[str]:
    sizes = sorted({cell.windows for cell in cells})
    widths = (8, *(13 for _ in sizes))
    for copies in sorted({cell.copies for cell in cells}):
        mine = {(cell.ttl, cell.windows): cell for cell in cells if cell.copies == copies}
        rate = next(iter(mine.values())).turns_per_second
        yield f"{rate:.1f} turns/s"
        yield _row(("ttl", *(f"{size:,}" for size in sizes)), widths)
        for ttl in sorted({ttl for ttl, _ in mine}):
            row = [f"{100 * mine[ttl, size].measured:.1f} / {100 * mine[ttl, size].predicted:.1f}" for size in sizes]
            yield _row((f"{ttl:g} s", *row), widths)
    yield f"greatest difference: {max(abs(cell.difference) for cell in cells):.2f} points"


def _spread(spread: Spread, digits: int) -> str:
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f}-{spread.high:.{digits}f})"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

"""The trace through the real pool, in this process and on a simulated clock, against what `epd explain` predicts."""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.swapool.trace import PAGE, WINDOW, Turn, rate
from epd_operator.cli import pool_sizing
from epd_workers.swapool.key import Key, Namespace
from epd_workers.swapool.memory import Memory
from epd_workers.swapool.pool import WindowPool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.swapool.trace import Boundary

TTLS: Final = (60.0, 120.0, 300.0, 600.0)
WINDOWS: Final = (500, 1000, 2000, 4000, 8000)
COPIES: Final = (1, 2, 3)
SHIFT: Final = 7.0
# Small, but large enough for its name to weigh nothing. What it holds decides nothing here.
SPACE: Final = Namespace(
    model="trace",
    checkpoint="",
    engine="bench",
    layout="",
    row_format="",
    first_layer=0,
    layers=1,
    window=WINDOW,
    row_bytes=66,
    page_size=PAGE,
)
_ROWS: Final = bytes(SPACE.largest)
_PATIENCE: Final = 10.0


@dataclass(frozen=True)
class Cell:
    """One replay.

    Attributes:
        ttl: Seconds that a window may be used for.
        windows: That the pool holds, by `pool_sizing.held`.
        copies: Of the trace, one beside the other, each with a tenant of its own: multiples of its rate.
        turns_per_second: Of all copies together.
        returning: Turns that come back to a window that was, or would have been, published.
        measured: Share of them that found it.
        predicted: The share that the operator predicts.
    """

    ttl: float
    windows: int
    copies: int
    turns_per_second: float
    returning: int
    measured: float
    predicted: float

    @property
    def difference(self) -> float:
        """Measured minus predicted, in percentage points."""
        return 100 * (self.measured - self.predicted)

    def to_json(self) -> dict[str, Any]:
        """All of it, rounded."""
        return {name: round(value, 4) for name, value in vars(self).items()}


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def replay(trace: Sequence[Turn], ttl: float, windows: int, copies: int) -> Cell:
    """Send every turn's lookup and windows through a pool.

    As in an engine, a turn that misses approximates, and publishes nothing; nor does what follows it find anything.

    Args:
        trace: The turns of the trace.
        ttl: Seconds that a window may be used for.
        windows: That the pool holds.
        copies: Of the trace.
    """
    clock = _Clock()
    memory = windows * (SPACE.largest + pool_sizing.ENTRY_BYTES)
    pool = WindowPool(Memory(memory, clock), SPACE.largest, clock=clock)
    spaces = [SPACE.salted(str(number)) for number in range(copies)]
    seen: list[set[Boundary]] = [set() for _ in spaces]
    returning = hits = 0
    for at, copy, turn in _timeline(trace, copies):
        clock.now = at
        exact = True
        if turn.looks in seen[copy]:
            exact = pool.get(_key(spaces[copy], turn.looks), _PATIENCE) is not None
            returning += 1
            hits += exact
        seen[copy].update(turn.publishes)
        for boundary in turn.publishes if exact else ():
            pool.put(_key(spaces[copy], boundary), _ROWS, ttl)
    pool.close()
    turns_per_second = copies * rate(trace)
    capacity = pool_sizing.Capacity(
        pool_sizing.held("InProcess", memory, SPACE.largest), pool_sizing.windows_per_turn(PAGE, WINDOW)
    )
    predicted = capacity.hit_share(ttl, turns_per_second)
    return Cell(ttl, windows, copies, turns_per_second, returning, hits / returning, predicted)


def _timeline(trace: Sequence[Turn], copies: int) -> Iterator[tuple[float, int, Turn]]:
    """The turns of all copies in the order of time; a copy begins a little after the one before it."""
    streams = [[(turn.at + copy * SHIFT, copy, turn) for turn in trace] for copy in range(copies)]
    return heapq.merge(*streams, key=lambda event: event[0])


def _key(space: Namespace, boundary: Boundary) -> Key:
    return Key(space, hashlib.sha256(b"%d" % boundary.turn).digest(), boundary.position)

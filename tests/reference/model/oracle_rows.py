"""Which rows run in which half of the network, and how far back their windows reach: explicit sets, no caches.

Sources: SGLang 0.5.23, kernels/ops/attention/dsv4/attn_metadata_kernels.py (tails and floors),
model_executor/encoder_swa_replay.py (replay in front of an extend); SGLang at commit 37ae292e (the older rule).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Replay = Literal["0.5.23", "dsv41-37ae292e"]


@dataclass(frozen=True)
class Step:
    """One forward of one request: rows [start, stop) in the early layers, [tail, stop) in the late ones.

    The window of early row i is [max(early_floor, i - W + 1), i], that of late row i [max(late_floor, i - W + 1), i].
    """

    start: int
    stop: int
    tail: int
    early_floor: int
    late_floor: int


def steps_of(
    chunks: Sequence[int],
    window: int,
    *,
    replay: Replay | None = None,
    whole_extend: bool | Sequence[bool] = False,
    decode: int = 0,
    hit: int = 0,
    halo: int | None = None,
) -> list[Step]:
    """The forwards of one request.

    Args:
        chunks: Rows of each extend, in order, behind the hit.
        window: W.
        replay: The decoder replay rule, or None for every row in every layer.
        whole_extend: One flag, or one a chunk: the chunk's late layers run on all its rows.
        decode: Single rows decoded after the chunks; they are never trimmed.
        hit: Rows whose global entries are cached and whose windows are not; the last min(hit, W) run again in
            front of the first extend.
        halo: Instead of min(W, E) the late layers run on this many last rows and see no row before them.

    Returns:
        One step a forward.
    """
    first = hit - min(hit, window)
    flags = [whole_extend] * len(chunks) if isinstance(whole_extend, bool) else list(whole_extend)
    steps, start, stop = [], first, hit
    for rows, whole in zip(chunks, flags, strict=True):
        stop += rows
        extend = stop - start
        if replay is None:
            tail, floor = extend, first
        elif halo is not None:
            tail = min(halo, extend)
            floor = stop - tail
        elif whole:
            tail, floor = extend, stop - extend - window
        else:
            tail = min(window, extend)
            floor = stop - window if replay == "0.5.23" else stop - tail
        steps.append(Step(start, stop, stop - tail, first, max(first, floor)))
        start = stop
    steps.extend(Step(stop + k, stop + k + 1, stop + k, first, first) for k in range(decode))
    return steps


def late_start(last_source: int, layers: int, replay: Replay | None) -> int:
    """The first layer that runs on tails only; `layers` where none does."""
    return {None: layers, "0.5.23": last_source, "dsv41-37ae292e": last_source + 1}[replay]


def visible_windows(steps: Sequence[Step], window: int, *, late: bool) -> dict[int, range]:
    """Row -> positions its window covers, for the rows that a layer of that half runs."""
    sets = {}
    for step in steps:
        floor = step.late_floor if late else step.early_floor
        for i in range(step.tail if late else step.start, step.stop):
            sets[i] = range(max(0, floor, i - window + 1), i + 1)
    return sets


def unwritten_reads(windows: dict[int, range]) -> list[tuple[int, int]]:
    """(row, position) of every window read of a row that never ran in that half."""
    return [(i, j) for i, seen in windows.items() for j in seen if j not in windows]

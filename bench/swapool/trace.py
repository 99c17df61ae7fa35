"""Conversations of a public trace, as the window pool meets them.

The trace (kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0; `data/README.md`) says which blocks of 512 tokens two
prompts share. The block that all prompts begin with belongs to no conversation. A prompt that begins with all whole
blocks of an earlier one, beyond that, is taken for a later turn of the same conversation, and so to hold the whole of
the earlier prompt: what the last, broken block holds is not in the trace. The trace's clock ticks every three seconds;
the prompts of one tick are spread over it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FILE: Final = Path(__file__).parent / "data" / "conversation.jsonl"
SOURCE: Final = "github.com/kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl, rows 1 to 7,000"
BLOCK: Final = 512
# Blocks that all prompts of the trace begin with.
COMMON: Final = 1
TICK: Final = 3.0
PAGE: Final = 64
WINDOW: Final = 128


class Boundary(NamedTuple):
    """A page boundary of a conversation: the same one for all prompts that begin with the same tokens.

    Attributes:
        turn: Number of the first prompt that reaches it.
        position: Tokens before it.
    """

    turn: int
    position: int


@dataclass(frozen=True)
class Turn:
    """One prompt.

    Attributes:
        at: Seconds since the trace began.
        looks: Where it may take up an earlier prompt; None for a prompt that begins a conversation.
        publishes: The boundaries that a later turn may come back to.
    """

    at: float
    looks: Boundary | None
    publishes: tuple[Boundary, ...]


@dataclass(frozen=True)
class _Row:
    at: float
    tokens: int
    blocks: tuple[int, ...]


@cache
def turns(page: int = PAGE, rerun: int = WINDOW) -> tuple[Turn, ...]:
    """Every prompt of the trace, in its order.

    Args:
        page: Tokens of a page.
        rerun: Rows at a prompt's end that run in any case: the window with decoder replay, else 1.
    """
    rows = _spread([_row(line) for line in FILE.read_text(encoding="utf-8").splitlines()])
    return tuple(_turns(rows, page, rerun))


def pauses(trace: Sequence[Turn]) -> list[float]:
    """For each turn that comes back to a window, the longest pause of its conversation so far, in seconds; sorted.

    A pause is from when the window was last published to when a turn comes back to it.
    """
    published: dict[Boundary, tuple[float, float]] = {}
    longest = []
    for turn in trace:
        pause = 0.0
        if turn.looks in published:
            at, before = published[turn.looks]
            pause = max(before, turn.at - at)
            longest.append(pause)
        published.update(dict.fromkeys(turn.publishes, (turn.at, pause)))
    return sorted(longest)


def rate(trace: Sequence[Turn]) -> float:
    """Turns a second."""
    return len(trace) / (trace[-1].at - trace[0].at)


def _row(line: str) -> _Row:
    row = json.loads(line)
    return _Row(row["timestamp"] / 1000, row["input_length"], tuple(row["hash_ids"]))


def _spread(rows: Sequence[_Row]) -> list[_Row]:
    ticks = [list(tick) for _, tick in groupby(rows, key=lambda row: row.at)]
    return [replace(row, at=row.at + TICK * number / len(tick)) for tick in ticks for number, row in enumerate(tick)]


def _turns(rows: Sequence[_Row], page: int, rerun: int) -> Iterable[Turn]:
    before = _before(rows)

    def boundary(number: int, position: int) -> Boundary:
        while (earlier := before[number]) is not None and position <= rows[earlier].tokens:
            number = earlier
        return Boundary(number, position)

    for number, row in enumerate(rows):
        earlier = before[number]
        match = 0 if earlier is None else rows[earlier].tokens
        back = min(match, row.tokens - rerun) // page
        first = max(1, (row.tokens + 1 - rerun) // page)
        yield Turn(
            at=row.at,
            looks=boundary(number, back * page) if back > 0 else None,
            publishes=tuple(boundary(number, at * page) for at in range(first, row.tokens // page + 1)),
        )


def _before(rows: Sequence[_Row]) -> list[int | None]:
    """For each prompt the latest of the longest earlier ones that it begins with."""
    ends: dict[int, int] = {}
    predecessors = []
    for number, row in enumerate(rows):
        candidates = (ends.get(block) for block in reversed(row.blocks[COMMON:]))
        predecessors.append(next((at for at in candidates if at is not None and rows[at].tokens <= row.tokens), None))
        whole = row.tokens // BLOCK
        if whole > COMMON:
            ends[row.blocks[whole - 1]] = number
    return predecessors

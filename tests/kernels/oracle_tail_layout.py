"""The tail layout, row by row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One request's share of a step."""

    extend: int
    length: int
    base: int
    whole: bool


@dataclass(frozen=True)
class Row:
    """One place of the layout."""

    row: int
    position: int
    floor: int
    request: int


PADDING = Row(-1, -1, 0, -1)


def places(parts: list[Part], window: int, policy: str, capacity: int) -> tuple[list[Row], list[int]]:
    """All places, padding included, and where requests start."""
    actual, starts, before = [], [0], 0
    for request, part in enumerate(parts):
        first_new = part.length - part.extend
        for i in range(part.extend):
            position = first_new + i
            if part.whole:
                actual.append(Row(before + i, position, part.base, request))
            elif position >= part.length - window:
                reach = {"0.5.23": part.length - window, "dsv41-37ae292e": max(first_new, part.length - window)}[policy]
                actual.append(Row(before + i, position, max(part.base, reach, 0), request))
        before += part.extend
        starts.append(len(actual))
    return actual + [PADDING] * (capacity - len(actual)), starts

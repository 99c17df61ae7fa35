"""The page-table walk, slot by slot."""

from __future__ import annotations


def slot(place: int, request: int, pages: list[list[int]], page_size: int) -> int:
    """Where a place of a request lies, or -1."""
    if request < 0 or place < 0 or place >= len(pages[request]) * page_size:
        return -1
    page = pages[request][place // page_size]
    return -1 if page < 0 else page * page_size + place % page_size


def window(
    position: int, floor: int, request: int, pages: list[list[int]], page_size: int, size: int
) -> tuple[list[int], int]:
    """One row's slots, filled up with -1, and how many positions it may read."""
    if request < 0:
        return [-1] * size, 0
    readable = [p for p in range(position + 1) if p >= floor and position - p < size]
    slots = [slot(p, request, pages, page_size) for p in readable]
    return slots + [-1] * (size - len(slots)), len(readable)

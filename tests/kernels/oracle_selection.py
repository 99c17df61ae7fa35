"""Index scores and what is chosen by them, one number at a time."""

from __future__ import annotations

from math import inf

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def decode(row: list[int], dim: int) -> list[float]:
    """The values of a row's bytes: two E2M1 codes a byte, the lower nibble first; then a power of two per 32."""
    values = []
    for i in range(dim):
        code = row[i // 2] >> (4 * (i % 2)) & 0xF
        scale = 2.0 ** (row[dim // 2 + i // 32] - 127)
        values.append(MAGNITUDES[code & 7] * scale * (-1 if code & 8 else 1))
    return values


def score(query: list[list[float]], weights: list[float], key: list[float]) -> float:
    """Of one row and one entry."""
    dots = [sum(a * b for a, b in zip(head, key, strict=True)) for head in query]
    return sum(weight * max(0.0, dot) for weight, dot in zip(weights, dots, strict=True))


def maxima(values: list[float], block: int) -> list[float]:
    """The best of each block."""
    return [max(values[start : start + block]) for start in range(0, len(values), block)]


def best(values: list[float], count: int) -> list[int]:
    """Places of the largest, -inf never; of equal ones the first; rising, -1 behind the last."""
    seen = [place for place, value in enumerate(values) if value > -inf]
    kept = sorted(sorted(seen, key=lambda place: (-values[place], place))[:count])
    return kept + [-1] * (count - len(kept))


def best_blocks(largest: list[float], visible: int, block: int, count: int) -> list[int]:
    """The best blocks, among them that of the newest visible entry."""
    newest = (visible - 1) // block if visible > 0 else -1
    return best([inf if b == newest and v > -inf else v for b, v in enumerate(largest)], count)


def only(values: list[float], blocks: list[int], block: int) -> list[float]:
    """Values of entries in some blocks; -inf elsewhere."""
    return [value if place // block in blocks else -inf for place, value in enumerate(values)]

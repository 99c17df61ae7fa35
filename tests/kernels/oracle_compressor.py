"""Pooling of pairs one token at a time, in plain Python floats (float64)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

Token = tuple[list[float], list[float]]
"""Content and gate of a token."""


@dataclass
class Owner:
    """What one sequence has been given so far."""

    length: int = 0
    kept: Token | None = None
    entries: list[tuple[int, list[float]]] = field(default_factory=list)

    def feed(self, token: Token, weight: list[float], eps: float) -> None:
        """Take the next token; an even one is kept until its partner comes."""
        if self.length % 2 == 0:
            self.kept = token
        else:
            assert self.kept is not None
            self.entries.append((self.length // 2, latent(self.kept, token, weight, eps)))
            self.kept = None
        self.length += 1


def latent(one: Token, other: Token, weight: list[float], eps: float) -> list[float]:
    """The softmax of two gates as a logistic function of their difference; then RMSNorm."""
    mixed = []
    for a, b, g, h in zip(one[0], other[0], one[1], other[1], strict=True):
        share = 1 / (1 + math.exp(min(h - g, 700.0)))
        mixed.append(a * share + b * (1 - share))
    root = math.sqrt(math.fsum(x * x for x in mixed) / len(mixed) + eps)
    return [x / root * w for x, w in zip(mixed, weight, strict=True)]

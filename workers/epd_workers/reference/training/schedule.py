"""What is trained when: every number is a function of the step alone, so that a run can be repeated.

The order: everything visible is attended to, with growing distances; then the indexer learns which entries the
attention wants while all are still seen; then only its choice is seen, caches and weights rounded as when serving.

Source of the order: DeepSeek-V3.2 technical report, section 2.1 (dense warm-up, then sparse training).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from epd_workers.reference.model.dense import Options, Selection

DISTIL_FROM: Final = 0.5
SPARSE_FROM: Final = 0.65
ROUNDED_FROM: Final = 0.6
_LENGTHS: Final = (
    (0.0, 120, 8, 4, 1.0, 8), (0.2, 200, 8, 4, 0.6, 9), (0.35, 300, 10, 3, 0.4, 9),
    (0.5, 450, 10, 2, 0.3, 9), (0.75, 650, 10, 2, 0.2, 11),
)  # fmt: skip
HELP: Final = 1.0
MIXED_FROM: Final = 0.22
_WARM_UP: Final = 30
_LEAST_RATE: Final = 0.04


@dataclass(frozen=True)
class Stage:
    """How one step is run.

    Attributes:
        options: Of the dense forward.
        quantised: Whether the weights are rounded to their stored formats (gradients pass straight through).
        tokens: Length of a story, in tokens.
        turns: Questions behind it.
        stories: Stories in a batch.
        restated: Part of a story's facts that it states twice.
        pictures: Pictures in a batch.
        helped: Weight of the losses that tell the attention where to look.
        mixed: Whether the second process takes pictures in every other step.
    """

    options: Options
    quantised: bool
    tokens: int
    turns: int
    stories: int
    restated: float
    pictures: int
    helped: float
    mixed: bool


def stage(step: int, steps: int) -> Stage:
    """The stage of a step."""
    part = step / steps
    sparse = part >= SPARSE_FROM
    options = Options(
        selection=Selection.TOP if sparse else Selection.ALL,
        rounded=part >= ROUNDED_FROM,
        distil=part >= DISTIL_FROM,
    )
    _, tokens, turns, stories, restated, pictures = next(entry for entry in reversed(_LENGTHS) if part >= entry[0])
    return Stage(options, part >= ROUNDED_FROM, tokens, turns, stories, restated, pictures, HELP, part >= MIXED_FROM)


def rate(step: int, steps: int) -> float:
    """Part of the highest learning rate: a linear rise, then a cosine."""
    return min(1.0, (step + 1) / _WARM_UP) * (
        _LEAST_RATE + (1 - _LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * step / steps))
    )

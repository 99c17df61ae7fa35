"""Types of command-line arguments that report a bad value with its bounds."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def whole(low: int) -> Callable[[str], int]:
    """Whole numbers from `low` on."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {low} or more")
        return value

    return read


def number(*, zero: bool) -> Callable[[str], float]:
    """Finite numbers above 0, or from 0 on."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {'of 0 or more' if zero else 'above 0'}")
        return value

    return read

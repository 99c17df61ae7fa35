"""Lengths of time as users write them: `300s`, `20ms`, `1h30m`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

from epd_operator.api.scalar import DURATION

_UNITS: Final = {"h": Decimal(3600), "m": Decimal(60), "s": Decimal(1), "ms": Decimal("0.001")}
_PART: Final = re.compile(r"([0-9.]+)(ms|h|m|s)")


def parse(value: Any) -> Decimal | None:
    """The seconds, or None when `value` is not a duration."""
    if not isinstance(value, str) or not value or re.fullmatch(DURATION, value) is None:
        return None
    return sum((Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(value)), Decimal(0))

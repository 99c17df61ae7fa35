"""Kubernetes quantities as exact numbers: the API server stores `1000m` as `1`, which is the same."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

_SUFFIX: Final = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_SHAPE: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")


def stored(text: str) -> str:
    """A quantity of a container's resources as the API server stores it, which rounds up what is finer than a milli.

    Applied as written, such a quantity would never equal what is stored. Other texts stay as they are.
    """
    amount = parse(text)
    if amount is None or amount * 1000 == int(amount * 1000):
        return text
    return f"{int(amount * 1000) + 1}m"


def parse(value: Any) -> Decimal | None:
    """The amount, or None when `value` is not a quantity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _SHAPE.fullmatch(str(value))
    return Decimal(match[1]) * _SUFFIX[match[2] or ""] if match else None

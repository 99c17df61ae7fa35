"""Pydantic's messages, reworded for people who write YAML: the rule, then the way out."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from epd_operator.api import scalar

if TYPE_CHECKING:
    from collections.abc import Mapping

REQUIRED: Final = "is required"
TYPES: Final = ("must be a valid ", "must be true or false")
"""Beginnings of what is said of a value of the wrong type."""

_LABEL: Final = "must be lower-case letters, digits and dashes, with a letter or digit at both ends"
_PATTERNS: Final[Mapping[str, str]] = {
    scalar.QUANTITY: "must be an amount above zero: a number, then nothing or one of m, k, M, G, T, Ki, Mi, Gi, Ti",
    scalar.DURATION: "must be a length of time: numbers, each with its unit h, m, s or ms in this order, such as 300s "
    "or 1h30m",
    scalar.DNS_LABEL: _LABEL,
    scalar.DNS_SUBDOMAIN: "must be lower-case letters, digits, dashes and dots, each part with a letter or digit at "
    "both ends",
    scalar.PRINTABLE: "must be of printable ASCII characters: leave out spaces and others",
    "^/[^:]*$": "must be an absolute path without a colon: let it start with a slash",
}
_CLASS: Final = re.compile(r"\^\[([^\]]+)\]\+\$")
_RANGES: Final = {"a-z": "a-z", "A-Z": "A-Z", "0-9": "0-9"}
_BYTES: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKMGT])(?:i?[bB])?")


def of_pattern(pattern: str, value: Any) -> str:
    """What a text must look like that does not match a pattern."""
    expected = _PATTERNS.get(pattern) or _of_class(pattern) or f"must match {pattern}"
    return f"{expected}{_amount(value)}" if pattern == scalar.QUANTITY else expected


def of_type(wanted: str, value: Any) -> str | None:
    """What to write instead of a value of the wrong type; None where pydantic's own message will do.

    Args:
        wanted: pydantic's name of the fault, such as `int_type`.
        value: What stands there.
    """
    match wanted:
        case "string_type" if isinstance(value, bool | int | float):
            return f"must be a string: quote it, as in {json.dumps(str(json.dumps(value)))}"
        case "string_type":
            return "must be a string"
        case "int_type":
            digits = isinstance(value, str) and re.fullmatch("-?[0-9]+", value)
            return "must be a valid integer" + (f": write {value} without quotes" if digits else "")
        case "bool_type":
            boolean = isinstance(value, str) and value.lower() in {"true", "false"}
            return "must be true or false" + (f": write {str(value).lower()} without quotes" if boolean else "")
        case _:
            return None


def _of_class(pattern: str) -> str:
    match = _CLASS.fullmatch(pattern)
    if match is None:
        return ""
    held = match[1]
    ranges = [name for name in _RANGES if name in held]
    for name in ranges:
        held = held.replace(name, "")
    if len(held) > 2 and "-" in held[1:-1]:
        return ""
    return f"may hold only {', '.join(ranges)}{' and ' if held else ''}{' '.join(held)}"


def _amount(value: Any) -> str:
    match = _BYTES.fullmatch(value.replace(" ", "")) if isinstance(value, str) else None
    if match is None:
        return ", such as 512Gi"
    number, unit = match[1], match[2]
    return f": write {number}{unit.upper()}i, or {number}{'k' if unit in 'kK' else unit} for powers of ten"

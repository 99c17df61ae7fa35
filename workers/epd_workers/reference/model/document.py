"""A JSON object as a dataclass, with one message for everything that does not fit."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """The values as JSON has them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def read(
    kind: type[Any], data: object, where: str, faults: list[str], *, optional: Collection[str] = frozenset()
) -> Any:
    """Fill a dataclass whose every field has a default from a JSON object.

    Args:
        kind: The dataclass; a field whose default is a dataclass is an object of its own.
        data: What JSON gave.
        where: Its place in the file, for messages.
        faults: Takes one message per field that is missing or of another kind than its default.
        optional: Fields that may be missing.
    """
    if not isinstance(data, dict):
        faults.append(f"{where} is {type(data).__name__}: must be an object")
        return kind()
    known = {item.name: item for item in fields(kind)}
    defaults, given = kind(), {}
    for name in known:
        if name not in data and name in optional:
            continue
        if name not in data:
            faults.append(f"{where}.{name} is missing")
            continue
        value, default = data[name], getattr(defaults, name)
        if is_dataclass(default):
            given[name] = read(type(default), value, f"{where}.{name}", faults)
        elif not _fits(value, default):
            faults.append(f"{where}.{name} is {value!r}: must be {_kind(default)}")
        else:
            given[name] = _typed(value, default)
    return replace(defaults, **given)


def _typed(value: Any, default: object) -> object:
    """The value as this field holds it, so that 1 and 1.0 are one configuration."""
    if isinstance(default, tuple):
        return tuple(value)
    return float(value) if isinstance(default, float) else value


def _fits(value: object, default: object) -> bool:
    if default is None:
        return value is None or _number(value)
    if isinstance(default, tuple):
        return isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, float):
        return _number(value)
    return isinstance(value, type(default))


def _number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _kind(default: object) -> str:
    if isinstance(default, tuple):
        return "a list of integers"
    kinds = {bool: "true or false", int: "an integer", float: "a number", str: "a string", type(None): "a number"}
    return kinds[type(default)]

"""The way out of a flag's wrong value, in the notation of the file that holds it."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any, Final

from epd_operator.rules.limit import MOST_CHARACTERS, MOST_ITEMS, is_long

if TYPE_CHECKING:
    from epd_operator.rules.flag import FlagSpec, FlagType

_READABLE: Final = 60
_HINTS: Final[dict[FlagType, str]] = {
    "bool": "write true or false",
    "int": "write a whole number without quotes",
    "human-int": 'write a whole number, or a text such as "8k"',
    "float": "write a number without quotes",
    "json": "write it as a string of JSON, such as '{\"key\": 1}'",
    "strict-json": "write it as a string of JSON, such as '[{\"key\": 1}]'",
    "graph-config": 'write it as a string of JSON, such as \'{"decode": {"max_bs": 64}}\'',
    "log-level": "write a name such as info",
    "lora": "write name=path, as a string",
}

_BOOLEANS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def remedy(spec: FlagSpec, value: Any) -> str:
    """What to write instead of a value under `spec.roles.X.args` that has a fault."""
    if value is None:
        return "give it a value, or leave the flag out"
    if not isinstance(value, list):
        return _scalar(spec, value)
    if spec.nargs not in {"*", "+"}:
        return "give one value, without brackets"
    if not 0 < len(value) <= MOST_ITEMS:
        return f"leave out all but {MOST_ITEMS}" if value else "add a value, or leave the flag out"
    if any(isinstance(item, str) and item.startswith("-") for item in value):
        return "give this value alone, without brackets, or one without a dash"
    return _scalar(spec, next(item for item in value if spec.fault(item) is not None))


def remedy_of_argument(spec: FlagSpec, argument: str) -> str:
    """What to write instead of an argument of a command line that the flag cannot take."""
    if spec.choices is not None:
        return _choice(spec, argument)
    hints = {"int": "write digits, such as 8", "human-int": "write digits, or a form such as 8k"}
    return hints.get(spec.type) or _HINTS.get(spec.type, "write another value").replace(" without quotes", "")


def _scalar(spec: FlagSpec, value: Any) -> str:
    if is_long(value) or (isinstance(value, str) and len(value) > MOST_CHARACTERS):
        return "write a smaller number" if is_long(value) else "shorten it"
    respelt = _respelt(value)
    for other in respelt:
        if spec.fault(other) is None:
            return _write(other, value)
    if spec.choices is not None:
        return _choice(spec, value)
    if isinstance(value, dict | list):
        return f"write it as a string of JSON: '{_cut(json.dumps(value, default=str))}'"
    bounds = _bounds(spec, value)
    return bounds or _HINTS.get(spec.type, "write a string")


def _respelt(value: Any) -> list[Any]:
    """The same value in other types, the likeliest first."""
    if isinstance(value, str):
        result: list[Any] = [_BOOLEANS[value.lower()]] if value.lower() in _BOOLEANS else []
        for read in (int, float):
            try:
                result.append(read(value))
            except ValueError:
                continue
        return result
    if isinstance(value, bool):
        # YAML reads a bare on, off, yes or no as a boolean.
        return ["true", "on", "yes"] if value else ["false", "off", "no"]
    if isinstance(value, float) and value.is_integer():
        return [int(value), str(int(value))]
    return [str(value)] if isinstance(value, int | float) else []


def _write(other: Any, value: Any) -> str:
    if isinstance(value, str):
        return f"write {json.dumps(other)} without quotes"
    return f"quote it: {json.dumps(other)}" if isinstance(other, str) else f"write {json.dumps(other)}"


def _choice(spec: FlagSpec, value: Any) -> str:
    near = difflib.get_close_matches(str(value).lower(), {str(choice).lower(): 0 for choice in spec.choices or ()}, 1)
    meant = next((choice for choice in spec.choices or () if near and str(choice).lower() == near[0]), None)
    return f"did you mean {meant}?" if meant is not None else "write one of these"


def _bounds(spec: FlagSpec, value: Any) -> str:
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        return ""
    if spec.minimum is not None and value < spec.minimum:
        return f"write {spec.minimum:g} or more"
    return f"write {spec.maximum:g} or less" if spec.maximum is not None and value > spec.maximum else ""


def _cut(text: str) -> str:
    return text if len(text) <= _READABLE else f"{text[:_READABLE]}..."

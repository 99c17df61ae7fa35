"""Many command lines in one process: a row of JSON in, a row of JSON out."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from epd_operator.cli import source
from epd_operator.cli.terminal import clean, write
from epd_operator.engines.validation import validate_command_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TextIO

_TYPES: Final[Mapping[str, tuple[type, str]]] = {
    "platform": (str, "a string"),
    "argv": (list, "a list of strings"),
    "env": (dict, "an object of strings"),
    "config": (dict, "an object"),
}

_CONFIG: Final[Mapping[str, tuple[type, str]]] = {
    "model_type": (str, "a string"),
    "text_config": (dict, "an object"),
}
_TEXT_CONFIG: Final[Mapping[str, tuple[type, str]]] = dict.fromkeys(
    ("dspark_block_size", "max_position_embeddings", "o_groups"), (int, "a whole number")
)
"""Fields of config.json that rules read."""


@dataclass(frozen=True)
class Engine:
    """The SGLang that command lines are judged by.

    Attributes:
        version: Whose rules are applied.
        asked: The version that they stand in for.
        plugins: The plugins that it loads.
    """

    version: str
    asked: str
    plugins: tuple[str, ...] = ()


class RowError(ValueError):
    """A row that is not a case; the message says why."""


def judge(
    path: str, engine: Engine, platform: str, platforms: tuple[str, ...], out: TextIO, *, strict: bool = False
) -> int:
    """Judge every row of a file and write one row for each; the exit status.

    Args:
        path: A file of one JSON object a line, `{id, platform, argv, env, config?}`; `-` for standard input.
        engine: Whose rules are applied.
        platform: For rows that name none.
        platforms: Those with rules.
        out: Where rows go, each as soon as it is known.
        strict: A warning refuses as well.
    """
    status = 0
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        name: Any = number
        try:
            row = _object(line)
            name = _name(row, number)
            _check(row)
            answer = {"id": name, **_judged(row, engine, platform, platforms, strict=strict)}
            status = max(status, 0 if answer["accepted"] else 1)
        except RowError as error:
            answer = {"id": name, "error": f"line {number}: {error}"}
            write(clean(f"epd: {path}: line {number}: {error}"), sys.stderr)
            status = 2
        print(json.dumps(answer, allow_nan=False), file=out, flush=path == "-")
    return status


def _judged(
    row: Mapping[str, Any], engine: Engine, platform: str, platforms: tuple[str, ...], *, strict: bool
) -> dict[str, Any]:
    judged_for = row.get("platform") or platform
    if judged_for not in platforms:
        raise RowError(f"platform is {judged_for!r}: use one of {', '.join(platforms)}")
    judgement = validate_command_line(
        engine.version,
        judged_for,
        row.get("argv") or [],
        row.get("env") or {},
        config=row.get("config"),
        asked=engine.asked,
        plugins=engine.plugins,
    )
    return {
        "accepted": judgement.accepted and not (strict and judgement.findings),
        **({"approximate": True} if judgement.approximate else {}),
        "findings": [finding.as_json() for finding in judgement.findings],
    }


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(source.decode(line))
    except source.ReadError as error:
        raise RowError(error.message) from error
    except (ValueError, RecursionError) as error:
        raise RowError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise RowError("must be an object with id, platform, argv and env")
    return row


def _name(row: Mapping[str, Any], number: int) -> Any:
    """The id of a row, or its line where it gives none."""
    name = row.get("id", number)
    try:
        json.dumps(name, allow_nan=False)
    except ValueError:
        raise RowError("id must be a string or a number that JSON can hold") from None
    return name


def _check(row: Mapping[str, Any]) -> None:
    for key, (kind, expected) in _TYPES.items():
        value = row.get(key)
        parts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        if value is not None and (
            not isinstance(value, kind) or (key != "config" and not all(isinstance(part, str) for part in parts))
        ):
            raise RowError(f"{key} must be {expected}")
    if row.get("argv") is None:
        raise RowError("has no argv: give the arguments after the program")
    config = row.get("config") or {}
    _check_types("config", config, _CONFIG)
    _check_types("config.text_config", config.get("text_config") or {}, _TEXT_CONFIG)


def _check_types(place: str, result: Mapping[str, Any], types: Mapping[str, tuple[type, str]]) -> None:
    for key, (kind, expected) in types.items():
        # None takes a field away; True is an int in Python alone.
        if type(result.get(key)) not in {kind, type(None)}:
            raise RowError(f"{place}.{key} must be {expected}")


def _lines(path: str) -> Iterator[bytes]:
    """Lines of a file, or of standard input as they come.

    Raises:
        source.ReadError: It cannot be read.
    """
    if path == "-":
        yield from sys.stdin.buffer
        return
    try:
        with Path(path).open("rb") as file:
            yield from file
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise source.ReadError(f"cannot be read: {reason}") from error

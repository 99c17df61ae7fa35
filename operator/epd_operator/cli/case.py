"""Many command lines in one process: a row of JSON in, a row of JSON out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from epd_operator.cli import source
from epd_operator.engines.validation import validate_command_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TextIO

_TYPES: Final[Mapping[str, tuple[type, str]]] = {
    "platform": (str, "a text"),
    "argv": (list, "a list of texts"),
    "env": (dict, "an object of texts"),
    "config": (dict, "an object"),
}


class RowError(ValueError):
    """A row that is no case; the message says why."""


def judge(path: str, version: str, platform: str, platforms: tuple[str, ...], out: TextIO) -> int:
    """Judge every row of a file and write one row for each; the exit status.

    Args:
        path: a file of one JSON object a line, `{id, platform, argv, env, config?}`; `-` for standard input.
        version: engine version.
        platform: for rows that name none.
        platforms: those with rules.
        out: where rows go, each as soon as it is known.
    """
    status = 0
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        name: Any = number
        try:
            row = _row(line)
            name = row.get("id", number)
            answer = _judged(row, name, version, platform, platforms)
            status = max(status, 0 if answer["accepted"] else 1)
        except RowError as error:
            answer = {"id": name, "error": f"line {number}: {error}"}
            print(f"epd: {path}: line {number}: {error}", file=sys.stderr)
            status = 2
        print(json.dumps(answer), file=out, flush=path == "-")
    return status


def _judged(
    row: Mapping[str, Any], name: Any, version: str, platform: str, platforms: tuple[str, ...]
) -> dict[str, Any]:
    judged_for = row.get("platform") or platform
    if judged_for not in platforms:
        raise RowError(f"platform is {judged_for!r}: use one of {', '.join(platforms)}")
    judgement = validate_command_line(
        version, judged_for, row.get("argv") or [], row.get("env") or {}, config=row.get("config")
    )
    return {
        "id": name,
        "accepted": judgement.accepted,
        "findings": [finding.as_json() for finding in judgement.findings],
    }


def _row(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError(f"is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise RowError("must be an object with id, platform, argv and env")
    for key, (kind, words) in _TYPES.items():
        value = row.get(key)
        parts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        if value is not None and (
            not isinstance(value, kind) or (key != "config" and not all(isinstance(part, str) for part in parts))
        ):
            raise RowError(f"{key} must be {words}")
    if row.get("argv") is None:
        raise RowError("has no argv: give the words after the program")
    return row


def _lines(path: str) -> Iterator[str]:
    """Lines of a file, or of standard input as they come.

    Raises:
        source.ReadError: it cannot be read.
    """
    if path == "-":
        for raw in sys.stdin.buffer:
            yield source.decode(raw)
        return
    try:
        with Path(path).open("rb") as file:
            for raw in file:
                yield source.decode(raw)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise source.ReadError(f"cannot be read: {reason}") from error

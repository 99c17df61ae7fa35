"""A server's configuration of its pool: one small JSON file, which may change while the server runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Final

# A day is beyond any use of a window; a pool that needs ten seconds costs more than the replay that it spares.
LONGEST: Final = {"ttl": 86400.0, "deadline": 10.0}
FORM: Final = '{"address": "valkey://HOST:6379", "ttl": 300.0, "deadline": 0.02}, or {} for no pool'


@dataclass(frozen=True)
class PoolSettings:
    """Where windows are, and how long they and their lookups may last.

    Attributes:
        address: The pool, as `epd_workers.swapool.address.engine` takes it.
        ttl: Seconds that a window may be used for.
        deadline: Seconds that a lookup may take.
    """

    address: str
    ttl: float = 300.0
    deadline: float = 0.02


def parse(text: bytes) -> PoolSettings | None:
    """Return the settings; None if the file says that there is no pool.

    Args:
        text: A JSON object: `address` (text), `ttl` and `deadline` (seconds).

    Raises:
        ValueError: The text is not valid. The message names everything that is wrong.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error}): give {FORM}") from error
    if given == {}:
        return None
    if wrong := _wrong(given) if isinstance(given, dict) else ["it is not a JSON object"]:
        raise ValueError(f"{'; '.join(wrong)}: give {FORM}")
    return PoolSettings(**given)


def _wrong(given: dict[str, Any]) -> list[str]:
    known = [field.name for field in fields(PoolSettings)]
    wrong = [f"unknown field {name!r}" for name in given if name not in known]
    address = given.get("address")
    if not isinstance(address, str) or not address:
        wrong.append("address must be a non-empty string")
    for name, longest in LONGEST.items():
        value = given.get(name, longest)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= longest:
            wrong.append(f"{name} is {value!r}: it must be a number of seconds above 0 and at most {longest:g}")
    return wrong

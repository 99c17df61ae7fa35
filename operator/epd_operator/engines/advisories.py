"""Lists of advisories as an administrator writes them, checked against the rules of this release."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import TypeAdapter, ValidationError

from epd_operator.engines import table
from epd_operator.rules.advisory import Advisory
from epd_operator.rules.rule import BUILT_IN

if TYPE_CHECKING:
    from pathlib import Path


class AdvisoryError(ValueError):
    """A list of advisories that cannot be used; one line per fault."""


def load(path: Path) -> tuple[Advisory, ...]:
    """Advisories from a YAML or JSON file.

    Raises:
        AdvisoryError: The file cannot be read, or with every fault of every row.
    """
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise AdvisoryError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    return read(rows)


def read(rows: Any) -> tuple[Advisory, ...]:
    """Advisories from a parsed YAML or JSON list of objects with the fields of `Advisory`.

    Raises:
        AdvisoryError: Every fault of every row.
    """
    if rows is None:
        return ()
    try:
        advisories = TypeAdapter(list[Advisory]).validate_python(rows)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        lines = [f"advisories{''.join(f'[{part!r}]' for part in fault['loc'])}: {fault['msg']}" for fault in faults]
        raise AdvisoryError("\n".join(lines)) from None
    ids = Counter(advisory.id for advisory in advisories)
    ours = {rule.id for ruleset in table.RULESETS.values() for rule in ruleset.rules} | set(BUILT_IN)
    taken = sorted(ours & set(ids))
    if taken:
        raise AdvisoryError(f"advisories: {', '.join(taken)} is the id of a rule: rename it")
    twice = [name for name, count in ids.items() if count > 1]
    if twice:
        raise AdvisoryError(f"advisories: {', '.join(twice)} is listed twice: rename one")
    return tuple(advisories)

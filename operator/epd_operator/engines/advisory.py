"""Engine builds known to misbehave, as data that can change between releases of the operator.

An advisory warns and never refuses: one report about one build is a reason to look, not a ban. It has an id like a
rule, so that `spec.engine.acknowledge` can mark it as read.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from epd_operator.engines import table
from epd_operator.engines.finding import Finding, Side
from epd_operator.engines.rule import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from epd_operator.engines.flag import Catalogue
    from epd_operator.engines.process import Process


class AdvisoryError(ValueError):
    """A list of advisories that cannot be used; one line per fault."""


class Advisory(BaseModel):
    """What is known of a build."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$", max_length=63)]
    """Words with dashes, unlike every rule's; `read` refuses one that a rule has."""
    versions: Annotated[list[str], Field(min_length=1)]
    """Values of `spec.engine.version` that it is about, exactly as users write them."""
    says: Annotated[str, Field(min_length=1)]
    """What goes wrong."""
    fix: Annotated[str, Field(min_length=1)]
    """A safe direction."""
    source: Annotated[str, Field(min_length=1)]
    """Where it was reported."""
    roles: list[Literal["encode", "prefill", "decode"]] = ["prefill", "decode"]
    """Whose flags are looked at."""
    platforms: list[str] = []
    """Platforms that it is about; empty: all."""
    args: dict[str, bool | int | float | str] = {}
    """Flags that must all have these values; the parser's default counts as given."""
    env: dict[str, str] = {}
    """Variables that must all have these values."""


def load(path: Path) -> tuple[Advisory, ...]:
    """Advisories from a YAML or JSON file.

    Raises:
        AdvisoryError: the file cannot be read, or with every fault of every row.
    """
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise AdvisoryError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    return read(rows)


def read(rows: Any) -> tuple[Advisory, ...]:
    """Advisories from a parsed YAML or JSON list of objects with the fields of `Advisory`.

    Raises:
        AdvisoryError: every fault of every row.
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
        raise AdvisoryError(f"advisories: {', '.join(twice)} stands there twice: rename one")
    return tuple(advisories)


def advise(
    advisories: Sequence[Advisory],
    written_version: str,
    process: Process,
    catalogue: Catalogue,
    acknowledged: frozenset[str],
) -> Iterator[Finding]:
    """The advisories that are about this process.

    Args:
        advisories: every one known.
        written_version: `spec.engine.version`.
        process: the process as the spec describes it.
        catalogue: flags of the version, for their defaults.
        acknowledged: ids marked as read.
    """
    for advisory in advisories:
        if written_version in advisory.versions and _concerns(advisory, process, catalogue):
            sides = [Side("spec.engine.version", written_version)]
            sides += [Side(f"spec.roles.{process.role}.args.{name}", value) for name, value in advisory.args.items()]
            sides += [Side(f"spec.roles.{process.role}.env.{name}", value) for name, value in advisory.env.items()]
            yield Finding(
                advisory.id,
                "warning",
                process.role,
                tuple(sides),
                advisory.says,
                advisory.fix,
                version=written_version,
                platform=process.platform,
                overridable=True,
                acknowledged=advisory.id in acknowledged,
                source=advisory.source,
            )


def _concerns(advisory: Advisory, process: Process, catalogue: Catalogue) -> bool:
    if process.role not in advisory.roles or (advisory.platforms and process.platform not in advisory.platforms):
        return False
    if any(process.variable(name) != value for name, value in advisory.env.items()):
        return False
    return all(_flag(process, catalogue, name) == value for name, value in advisory.args.items())


def _flag(process: Process, catalogue: Catalogue, name: str) -> Any:
    value = process.flag(name)
    if value is not None:
        return value
    spec = catalogue.find(name)
    return None if spec is None else spec.default

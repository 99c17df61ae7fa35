"""Engine builds known to misbehave, as data that can change between releases of the operator.

An advisory warns and never refuses: one report about one build is a reason to look, not a ban. It has an id like a
rule, so that `spec.engine.acknowledge` can mark it as read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from epd_operator.rules.finding import Finding, Side

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epd_operator.rules.flag import Catalogue
    from epd_operator.rules.process import Process


class Advisory(BaseModel):
    """What is known of a build."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$", max_length=63)]
    """Words with dashes, unlike every rule's; `engines.advisories` refuses one that a rule has."""
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


def advise(
    advisories: Sequence[Advisory],
    written_version: str,
    process: Process,
    catalogue: Catalogue,
    acknowledged: frozenset[str],
) -> Iterator[Finding]:
    """The advisories that are about this process.

    Args:
        advisories: Every one known.
        written_version: `spec.engine.version`.
        process: The process as the spec describes it.
        catalogue: Flags of the version, for their defaults.
        acknowledged: Ids marked as read.
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

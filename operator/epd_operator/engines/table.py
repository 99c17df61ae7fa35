"""The rulesets of this release, by engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines.reference.ruleset import RULESET as REFERENCE
from epd_operator.engines.sglang.base import checkpoint
from epd_operator.engines.sglang.ruleset import SGLANG
from epd_operator.rules import version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.rules.ruleset import Ruleset

__all__ = ["RULESETS", "checkpoint", "resolve"]

RULESETS: Final[Mapping[str, Ruleset]] = {"Reference": REFERENCE, "SGLang": SGLANG}


def resolve(ruleset: Ruleset, written: str, policy: version.Policy) -> version.Resolved | version.Refusal:
    """The version of an engine whose rules judge what the user wrote."""
    if ruleset.engine_type == "SGLang":
        return version.resolve(written, policy)
    if written in ruleset.versions:
        return version.Resolved(written, approximate=False)
    known = " or ".join(f'"{name}"' for name in ruleset.versions)
    return version.Refusal(f'spec.engine.version "{written}" is not known for {ruleset.engine_type}: use {known}')

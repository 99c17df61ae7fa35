"""Shorthand of the tests beside it: what a command line is refused for."""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any

from epd_operator.engines.validation import validate, validate_command_line
from tools.corpus.field_cases import field_cases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.rules.judgement import Judgement

RELEASE = "0.5.23"
BASE = ("--model-path", "deepseek-ai/DeepSeek-V4.1-Flash", "--tp-size", "4")


def judged(
    line: str,
    platform: str = "cuda-sm90",
    env: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Judgement:
    """The release's verdict on four GPUs with these flags more; the last of two spellings of a flag counts."""
    return validate_command_line(RELEASE, platform, (*BASE, *line.split()), env or {}, config=config)


@cache
def _base() -> dict[str, Any]:
    return next(case.document for case in field_cases() if case.name == "base-0.5.23")


def judged_spec(changes: Mapping[str, Any]) -> Judgement:
    """The release's verdict on a sound spec with changes.

    Args:
        changes: Value by a path below `spec`, where `P/` and `D/` begin what is below prefill and decode; steps are
            separated by `/`; None removes.
    """
    document = copy.deepcopy(_base())
    for path, value in changes.items():
        steps = path.replace("P/", "roles/prefill/").replace("D/", "roles/decode/").split("/")
        place = document["spec"]
        for step in steps[:-1]:
            place = place.setdefault(step, {})
        place[steps[-1]] = value
        if value is None:
            del place[steps[-1]]
    return validate(document)


def severities(changes: Mapping[str, Any]) -> dict[str, str]:
    """Severity by rule of what is said of such a spec."""
    return {finding.rule: finding.severity for finding in judged_spec(changes).findings}


def warnings(line: str, platform: str = "cuda-sm90", env: Mapping[str, str] | None = None) -> set[str]:
    """Ids of the rules that warn of a command line."""
    return {finding.rule for finding in judged(line, platform, env).findings if finding.severity == "warning"}


def errors(
    line: str,
    platform: str = "cuda-sm90",
    env: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> set[str]:
    """Ids of the rules that refuse it."""
    return {finding.rule for finding in judged(line, platform, env, config).errors}


def resolved(name: str, line: str, platform: str = "cuda-sm90", env: Mapping[str, str] | None = None) -> Any:
    """A setting as the engine would run with it."""
    (settings,) = judged(line, platform, env).resolved.values()
    return settings[name]

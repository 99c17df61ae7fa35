"""Shorthand of the tests beside it: what a command line is refused for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.engines.validation import validate_command_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.engines.judgement import Judgement

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

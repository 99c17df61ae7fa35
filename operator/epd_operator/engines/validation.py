"""The one question `epd validate`, the controller and the tests ask: what is wrong with this?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from epd_operator.api import SpecError, parse
from epd_operator.api.phrase import REQUIRED, TYPES
from epd_operator.engines import table
from epd_operator.rules import version as versions
from epd_operator.rules.finding import Finding, Side
from epd_operator.rules.judgement import Judgement, JudgementContext, judge_command_line, judge_spec
from epd_operator.rules.process import mapping, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.api import Fault
    from epd_operator.rules.advisory import Advisory

STRUCTURE: Final = "structure"
"""Rule id of everything that the schema of the resource refuses."""
VERSION: Final = "engine-version"
"""Rule id of versions that have no rules."""


def validate(
    document: Mapping[str, Any],
    *,
    platform: str | None = None,
    version: str | None = None,
    advisories: tuple[Advisory, ...] = (),
) -> Judgement:
    """Everything that is wrong with a DeepSeekV41Deployment, and the values that its engine would resolve.

    Args:
        document: The object as written; it may be anything at all, and nothing is raised.
        platform: Judge for this platform instead of `spec.engine.platform`.
        version: Judge for this version instead of `spec.engine.version`.
        advisories: What is known of single builds.
    """
    asked = _overlaid(document, {"platform": platform, "version": version})
    structure = _structure(asked)
    engine = mapping(read(asked, "spec.engine")) if isinstance(asked, dict) else {}
    ruleset = table.RULESETS.get(str(engine.get("type")))
    if ruleset is None:
        return Judgement(structure)
    written = engine.get("version")
    policy: versions.Policy = "Nearest" if engine.get("versionPolicy") == "Nearest" else "Strict"
    if not isinstance(written, str):
        return Judgement(structure)
    resolved = table.resolve(ruleset, written, policy)
    if isinstance(resolved, versions.Refusal):
        side = Side("spec.engine.version", written)
        # The side says already which field this is about.
        says, _, fix = resolved.message.removeprefix(f'spec.engine.version "{written}" ').partition(": ")
        unknown = Finding(VERSION, "error", "", (side,), says, fix, source="epd, list of profiles")
        return Judgement((*structure, unknown))
    refused = frozenset(side.field for finding in structure for side in finding.sides if _is_leaf(asked, side.field))
    judged = judge_spec(ruleset, resolved, asked, advisories, refused)
    return replace(judged, findings=(*structure, *judged.findings))


def validate_command_line(
    version: str,
    platform: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    config: Mapping[str, Any] | None = None,
    asked: str = "",
    plugins: tuple[str, ...] = (),
) -> Judgement:
    """What an SGLang of this version would say to this command line on that platform.

    Args:
        version: A version with rules.
        platform: `cuda-sm90`, `cuda-sm100`, `hip-gfx950`, or `cpu` for a rehearsal with the plugin.
        argv: The arguments after the program.
        env: Environment variables.
        config: Fields of config.json that differ from the released checkpoint's.
        asked: The version that the user asked for, when these rules only stand in for its own: it may well have flags
            that they do not know, which are only warned of.
        plugins: The plugins that it loads.
    """
    facts = None if config is None else table.checkpoint(config)
    approximate = asked not in {"", version}
    context = JudgementContext(
        table.RULESETS["SGLang"], version, platform, bare=True, plugins=plugins, lenient=approximate
    )
    return replace(judge_command_line(context, argv, env, facts), approximate=approximate, asked=asked or version)


def _structure(document: Mapping[str, Any]) -> tuple[Finding, ...]:
    try:
        parse(document)
    except SpecError as error:
        return tuple(_fault(fault) for fault in error.faults)
    return ()


def _fault(fault: Fault) -> Finding:
    says, _, fix = fault.message.partition(": ")
    missing = fault.value is None and says == REQUIRED
    form: Literal["value", "quoted", "alone"] = "value" if missing or fault.value is not None else "alone"
    if says.startswith(TYPES):
        form = "quoted"
    return Finding(STRUCTURE, "error", "", (Side(fault.field, fault.value, form=form),), says, fix, source="the CRD")


def _is_leaf(document: Mapping[str, Any], path: str) -> bool:
    """Whether a fault at this place is about one value; a rule about an object leaves its other fields judged."""
    return not isinstance(read(document, path), dict)


def _overlaid(document: Mapping[str, Any], changes: Mapping[str, str | None]) -> Mapping[str, Any]:
    wanted = {name: value for name, value in changes.items() if value is not None}
    if not wanted or not isinstance(document, dict):
        return document
    spec = mapping(document.get("spec"))
    return {**document, "spec": {**spec, "engine": {**mapping(spec.get("engine")), **wanted}}}

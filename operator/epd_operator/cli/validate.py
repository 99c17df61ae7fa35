"""`epd validate`: judge objects, one command line, or many; print; and say by the exit status how it went."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from epd_operator.cli import case, document, paste, record, sarif, text
from epd_operator.cli.case import Engine
from epd_operator.cli.source import ReadError
from epd_operator.cli.terminal import clean, style_of, write
from epd_operator.cli.verdict import Tally, Verdict
from epd_operator.engines import table, validation
from epd_operator.engines.advisories import AdvisoryError, load
from epd_operator.engines.sglang import plugin
from epd_operator.engines.sglang.base import REHEARSAL
from epd_operator.platform import PLATFORMS
from epd_operator.rules import commandline
from epd_operator.rules import version as versions
from epd_operator.rules.finding import Finding, Side
from epd_operator.rules.process import mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TextIO

    from epd_operator.cli.document import Document, Unreadable
    from epd_operator.cli.paste import Paste
    from epd_operator.rules.advisory import Advisory
    from epd_operator.rules.judgement import Judgement

Output = Literal["text", "json", "sarif"]

ROLE_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "aggregated": (),
    "prefill": ("--disaggregation-mode", "prefill"),
    "decode": ("--disaggregation-mode", "decode"),
    "encode": ("--encoder-only",),
}
"""Flags that set the role of SGLang 0.5.23 (server_args.py)."""
_OPTIONS: Final = {"platform": "--platform", "version": "--engine-version"}
ROLE_CONTRADICTION: Final = "role-contradiction"


@dataclass(frozen=True)
class Options:
    """How to judge and how to answer.

    Attributes:
        platform: Instead of what the object says; for command lines the default is the engine's.
        version: Instead of what the object says; for command lines the default is the newest known.
        output: Form of the answer.
        strict: Warnings refuse as well.
        ours_only: Pass over named files that cannot hold one of our objects.
        advisories: File with engine builds known to misbehave.
        plugins: What the engine of a command line loads.
    """

    platform: str | None = None
    version: str | None = None
    output: Output = "text"
    strict: bool = False
    ours_only: bool = False
    advisories: str | None = None
    plugins: tuple[str, ...] = ()


class EngineError(ValueError):
    """An engine that no rules judge: its version, its plugins, or what it is to run on."""


def files(paths: Sequence[str], options: Options) -> int:
    """Judge the objects in files and folders; the exit status."""
    try:
        known = load(Path(options.advisories)) if options.advisories else ()
    except AdvisoryError as error:
        return _unusable(str(error))
    printer = _Printer(options)
    for reading in document.read(paths, ours_only=options.ours_only):
        printer.tally.skipped += reading.skipped
        for item in reading.documents:
            printer.add(judged(item, options, known))
        if reading.unreadable is not None:
            printer.add(reading.unreadable)
    return printer.close()


def judged(result: Document, options: Options, advisories: tuple[Advisory, ...] = ()) -> Verdict:
    """The verdict on one object."""
    engine = mapping(mapping(result.data.get("spec")).get("engine"))
    asked = {"platform": options.platform, "version": options.version}
    if engine.get("type") != "SGLang":
        asked = dict.fromkeys(asked)  # another engine has other platforms and versions
    judgement = validation.validate(
        result.data, platform=asked["platform"], version=asked["version"], advisories=advisories
    )
    ruleset = table.RULESETS.get(str(engine.get("type"))) if judgement.version else None
    platform = asked["platform"] or engine.get("platform")
    return Verdict(
        judgement,
        result,
        engine=f"{ruleset.engine_type} {judgement.version}" if ruleset is not None else "",
        platform=str(platform or ruleset.default_platform) if ruleset is not None else "",
        strict=options.strict,
        overrides={f"spec.engine.{name}": _OPTIONS[name] for name, value in asked.items() if value is not None},
    )


def command_line(arguments: Sequence[str], env: Sequence[str], role: str | None, options: Options) -> int:
    """Judge one command line; the exit status."""
    try:
        pasted = paste.read(arguments)
        pasted = replace(pasted, env={**pasted.env, **paste.variables(env)})
        engine = _engine(options)
    except (paste.PasteError, EngineError) as error:
        return _unusable(str(error))
    platform = options.platform or table.RULESETS["SGLang"].default_platform
    verdict = Verdict(
        _judged_line(pasted, role, engine, platform),
        engine=f"SGLang {engine.version}",
        platform=platform,
        strict=options.strict,
    )
    printer = _Printer(options)
    printer.add(verdict)
    return printer.close(summary=False)


def cases(path: str, options: Options) -> int:
    """Judge a file of command lines; the exit status."""
    platform = options.platform or table.RULESETS["SGLang"].default_platform
    try:
        engine = _engine(options)
        platforms = tuple(name for name in PLATFORMS if engine.plugins or name != REHEARSAL)
        return case.judge(path, engine, platform, platforms, sys.stdout, strict=options.strict)
    except EngineError as error:
        return _unusable(str(error))
    except ReadError as error:
        return _unusable(f"{path} {error.message}")


def _judged_line(pasted: Paste, role: str | None, engine: Engine, platform: str) -> Judgement:
    def judge(argv: Sequence[str]) -> Judgement:
        return validation.validate_command_line(
            engine.version, platform, argv, pasted.env, asked=engine.asked, plugins=engine.plugins
        )

    if role is None:
        return judge(pasted.argv)
    catalogue = table.RULESETS["SGLang"].catalogue(engine.version, "aggregated")
    parsed = commandline.parse(pasted.argv, catalogue)
    if parsed.role == role:
        return judge(pasted.argv)
    # `--disaggregation-mode null` is a role that was given, too.
    if parsed.role == "aggregated" and "disaggregation-mode" not in parsed.args:
        return judge((*pasted.argv, *ROLE_FLAGS[role]))
    judgement = judge(pasted.argv)
    flags = " ".join(ROLE_FLAGS[parsed.role])
    contradiction = Finding(
        ROLE_CONTRADICTION,
        "error",
        role,
        (Side("--role", role), Side("command line", flags or "--disaggregation-mode null")),
        f"the flags start the {parsed.role} role, not the one that --role names",
        "leave one of the two out",
        version=engine.version,
        platform=platform,
        source="epd",
    )
    return replace(judgement, findings=(contradiction, *judgement.findings))


def _engine(options: Options) -> Engine:
    """The engine of command lines.

    Raises:
        EngineError: No rules are known for what was asked.
    """
    if options.platform == REHEARSAL and plugin.NAME not in options.plugins:
        raise EngineError(f"--platform {REHEARSAL} is for rehearsals with the plugin: add --plugin {plugin.NAME}")
    if options.plugins and options.version not in {None, plugin.RELEASE}:
        name = plugin.NAME
        raise EngineError(f"--plugin {name} is made for SGLang {plugin.RELEASE}: leave --engine-version out")
    newest = table.RULESETS["SGLang"].versions[-1]
    asked = options.version or newest
    resolved = versions.resolve(asked, "Nearest")
    if isinstance(resolved, versions.Refusal):
        raise EngineError(resolved.message.replace("spec.engine.version", "--engine-version"))
    return Engine(resolved.version, asked, options.plugins)


class _Printer:
    """Prints text as it comes, and JSON and SARIF at the end."""

    def __init__(self, options: Options) -> None:
        self.tally = Tally()
        self._options = options
        self._verdicts: list[Verdict] = []
        self._unreadable: list[Unreadable] = []
        self._left = False

    def add(self, result: Verdict | Unreadable) -> None:
        """Take one result."""
        self.tally.add(result)
        if not isinstance(result, Verdict):
            self._unreadable.append(result)
            _print(text.unreadable_lines(result, style_of(sys.stderr)), sys.stderr)
        elif self._options.output == "text":
            self._say(text.verdict_lines(result, style_of(sys.stdout)))
        else:
            self._verdicts.append(result)

    def close(self, *, summary: bool = True) -> int:
        """Print what is left; the exit status."""
        output = self._options.output
        if output == "json":
            self._say([json.dumps(record.whole(self._verdicts, self._unreadable, self.tally), indent=2)])
        elif output == "sarif":
            self._say([json.dumps(sarif.log(self._verdicts, self._unreadable), indent=2)])
        elif summary:
            self._say([str(self.tally)])
        return self.tally.status

    def _say(self, lines: Iterable[str]) -> None:
        """Print to standard output until its reader leaves, such as `head`: the verdict is the exit status then."""
        if self._left:
            return
        try:
            _print(lines, sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:
            self._left = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(lines: Iterable[str], stream: TextIO) -> None:
    for line in lines:
        write(line, stream)


def _unusable(message: str) -> int:
    for line in message.splitlines():
        write(clean(f"epd: {line}"), sys.stderr)
    return 2

"""`epd-sglang`: what the plugin would do to the engine that is installed here."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

import epd_sglang
from epd_sglang import catalog, doctor, engine
from epd_sglang.cpu import NAME as CPU
from epd_sglang.cpu.hooks import HOOKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_sglang.doctor import Finding

_GREEN, _RED, _PLAIN = "\033[32m", "\033[31m", "\033[0m"
_UNFIT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 0 all hooks apply, 1 some do not, 2 there is no engine."""
    parser = argparse.ArgumentParser(
        prog="epd-sglang",
        description="The plugin that gives SGLang an encode tier, the pool of windows and replay metrics.",
        epilog="exit status: 0 every hook applies; 1 some do not, and then none is put in place; 2 no engine is here.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("version", help="print the versions of the plugin and of the engine it was written for")
    look = commands.add_parser("doctor", help="say for every hook whether it applies to the installed engine")
    look.add_argument("--json", action="store_true", help="print a JSON object")
    chosen = parser.parse_args(argv)
    if chosen.command == "version":
        sys.stdout.write(f"epd-sglang {epd_sglang.__version__} for SGLang {engine.VERSION}\n")
        return 0
    try:
        result = {"epd": doctor.examine(catalog.hooks()), CPU: doctor.examine(HOOKS)}
    except ModuleNotFoundError as error:
        sys.stderr.write(f"epd-sglang: {error}: run this with the Python that runs the engine\n")
        return _UNFIT
    if chosen.json:
        listed = {name: [finding.document() for finding in findings] for name, findings in result.items()}
        sys.stdout.write(json.dumps({"engine": engine.version(), "plugins": listed}, indent=2) + "\n")
    else:
        sys.stdout.write(_text(result, coloured=sys.stdout.isatty()))
    return 0 if all(finding.applies for findings in result.values() for finding in findings) else 1


def _text(result: dict[str, list[Finding]], *, coloured: bool) -> str:
    lines = [f"SGLang {engine.version()} in {engine.root()}"]
    for name, findings in result.items():
        good = sum(finding.applies for finding in findings)
        lines += ["", f"{name}: {good} of {len(findings)} hooks apply"]
        if good < len(findings):
            lines[-1] += ", so none is put in place"
        for finding in findings:
            lines += [
                f"  {_mark(finding, coloured=coloured)} {finding.target}",
                f"      why: {finding.reason}",
                f"      leans on: {', '.join(finding.source)}",
                *(f"      but: {fault}" for fault in finding.faults),
            ]
    return "\n".join(lines) + "\n"


def _mark(finding: Finding, *, coloured: bool) -> str:
    text, colour = ("yes", _GREEN) if finding.applies else ("no ", _RED)
    return f"{colour}{text}{_PLAIN}" if coloured else text


if __name__ == "__main__":
    sys.exit(main())

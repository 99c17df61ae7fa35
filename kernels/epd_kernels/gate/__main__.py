"""Compile every kernel for every GPU that it is meant for, without one, and compare the result with the limits."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import triton

from epd_kernels.gate import limits, table
from epd_kernels.gate.measurement import measure
from epd_kernels.gate.target import TARGETS
from epd_kernels.warmup import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_kernels.gate.measurement import Measured


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0 if all is within its limits, 1 if not, 2 if that cannot be decided."""
    options = _parser().parse_args(arguments)
    if fault := _fault(options):
        print(fault, file=sys.stderr)
        return 2
    keep_compiled()
    return _write(options) if options.write else _compare(options)


def _fault(options: argparse.Namespace) -> str:
    """What is wrong with the command line or its environment; empty if nothing is."""
    if triton.knobs.runtime.interpret:
        return "TRITON_INTERPRET is set, so nothing would be compiled: unset it"
    if options.write and not _is_complete(options):
        return "--write needs every target and operation: leave --target and --operation out"
    if options.write and not options.page.parent.is_dir():
        return f"--page is {options.page}: there is no directory {options.page.parent}"
    return ""


def _compare(options: argparse.Namespace) -> int:
    # Loaded before the kernels are compiled, which takes minutes: damaged limits end the run at once. Limits of another
    # Triton do not, because the figures of this one are still worth a look.
    try:
        known = limits.load()
    except limits.OtherTriton as error:
        print(table.text(_measure(options)))
        print(error, file=sys.stderr)
        return 2
    except limits.Damaged as error:
        print(error, file=sys.stderr)
        return 2
    measured = _measure(options)
    return _show(measured, limits.breaches(measured, known, everything=_is_complete(options)), as_json=options.json)


def _write(options: argparse.Namespace) -> int:
    measured = _measure(options)
    broken = limits.broken_rules(measured)
    if not broken:
        limits.write(measured)
        options.page.write_text(table.markdown(measured))
    return _show(measured, broken, as_json=options.json)


def _is_complete(options: argparse.Namespace) -> bool:
    return not options.target and not options.operation


def _measure(options: argparse.Namespace) -> Measured:
    return measure(options.target or tuple(TARGETS), options.operation or OPERATIONS)


def _show(measured: Measured, breaches: Sequence[str], *, as_json: bool) -> int:
    """Print figures and breaches; return the exit status."""
    if as_json:
        plain = {
            name: {target: asdict(figures) for target, figures in targets.items()} for name, targets in measured.items()
        }
        print(json.dumps({"triton": triton.__version__, "figures": plain, "breaches": list(breaches)}, indent=1))
    else:
        print(table.text(measured))
        print()
        print("\n".join(breaches) or "all within their limits")
    return 1 if breaches else 0


def keep_compiled() -> None:
    """Keep Triton's cache beside our other caches, unless TRITON_CACHE_DIR is set."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache / "epd" / "triton"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m epd_kernels.gate",
        description=__doc__,
        epilog="exit status: 0 if all is within the limits, 1 if not (one line for each breach), 2 if that is unknown",
    )
    parser.add_argument("--target", action="append", choices=tuple(TARGETS), help="only this GPU; may be repeated")
    parser.add_argument("--operation", action="append", choices=OPERATIONS, help="only this operation; may be repeated")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument(
        "--write", action="store_true", help="make the measured figures the new limits, unless a rule is broken"
    )
    parser.add_argument(
        "--page",
        type=Path,
        default=Path("docs/kernels-report.md"),
        help="where --write puts the page of figures (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

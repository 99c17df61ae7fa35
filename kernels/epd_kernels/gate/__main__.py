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

from epd_kernels.gate import limits, report
from epd_kernels.gate.measurement import measure
from epd_kernels.gate.target import TARGETS
from epd_kernels.warmup import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_kernels.gate.measurement import Measured


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; 0 if all is within its limits, 1 if not, 2 if it cannot be told."""
    options = _parser().parse_args(arguments)
    if triton.knobs.runtime.interpret:
        print("TRITON_INTERPRET is set, so nothing would be compiled: unset it", file=sys.stderr)
        return 2
    keep_compiled()
    targets, operations = options.target or tuple(TARGETS), options.operation or OPERATIONS
    everything = not options.target and not options.operation
    if options.write and not everything:
        print("--write needs every target and operation: leave --target and --operation out", file=sys.stderr)
        return 2
    if options.write and not options.page.parent.is_dir():
        print(f"--page is {options.page}: there is no directory {options.page.parent}", file=sys.stderr)
        return 2
    # Read before minutes of compiling, which other limits than this Triton's leave worth a look, but damaged ones not.
    try:
        table = {} if options.write else limits.load()
    except limits.OtherTriton as error:
        print(report.text(measure(targets, operations)))
        print(error, file=sys.stderr)
        return 2
    except limits.Damaged as error:
        print(error, file=sys.stderr)
        return 2
    measured = measure(targets, operations)
    result = limits.broken_rules(measured) if options.write else limits.breaches(measured, table, everything=everything)
    if options.write and not result:
        limits.write(measured)
        options.page.write_text(report.markdown(measured))
    _show(measured, result, as_json=options.json)
    return 1 if result else 0


def _show(measured: Measured, result: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        plain = {name: {target: asdict(one) for target, one in targets.items()} for name, targets in measured.items()}
        print(json.dumps({"triton": triton.__version__, "figures": plain, "breaches": list(result)}, indent=1))
        return
    print(report.text(measured))
    print()
    print("\n".join(result) or "all within their limits")


def keep_compiled() -> None:
    """Let Triton keep what it compiles beside our other caches, unless TRITON_CACHE_DIR says where."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache / "epd" / "triton"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m epd_kernels.gate",
        description=__doc__,
        epilog="exit status: 0 within the limits, 1 past one (one line each), 2 if it cannot be told",
    )
    parser.add_argument("--target", action="append", choices=tuple(TARGETS), help="this GPU alone; may be repeated")
    parser.add_argument("--operation", action="append", choices=OPERATIONS, help="this one alone; may be repeated")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--write", action="store_true", help="make what is measured the limits, if no rule is broken")
    parser.add_argument(
        "--page",
        type=Path,
        default=Path("docs/kernels-report.md"),
        help="where --write puts the report for readers (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

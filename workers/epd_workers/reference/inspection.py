"""`epd-reference inspect`: the bytes of a checkpoint's caches, from its configuration alone."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epd_workers.reference.cache.geometry import Geometry
from epd_workers.reference.model.config import RELEASED, BadConfig, Config
from epd_workers.reference.model.loaded import PACKAGED
from epd_workers.reference.serving.options import FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_workers.reference.cache.geometry import Line

_DEFAULTS = {flag.name: flag.default for flag in FLAGS}


def main(arguments: Sequence[str]) -> int:
    """Print the table; return the exit status."""
    given = _parser().parse_args(list(arguments))
    faults: list[str] = []
    config = RELEASED if given.released else _config(given.model_path or PACKAGED, faults)
    if given.released and given.model_path:
        faults.append("--released and --model-path are both given: leave one out")
    counts = {"max-total-tokens": given.max_total_tokens, "window-cache-tokens": given.window_cache_tokens}
    faults += [f"--{name} is {count}: must be at least 0" for name, count in counts.items() if count < 0]
    geometry = None
    if config is not None:
        try:
            geometry = Geometry.of(config, given.page_size, given.kv_cache_dtype)
        except ValueError as error:
            faults.append(str(error))
    if faults or geometry is None:
        sys.stderr.write("".join(f"epd-reference inspect: {fault}\n" for fault in faults))
        return 2
    pages, windows = (-(-count // given.page_size) for count in counts.values())
    lines = geometry.table(pages, windows)
    sys.stdout.write(_document(geometry, lines) if given.json else _text(geometry, lines))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="epd-reference inspect",
        description="Print how many bytes the caches of a checkpoint take: per token, per running request, per page, "
        "and in pools of a given size. Only config.json is read.",
        epilog="example, DeepSeek-V4.1-Flash itself: epd-reference inspect --released",
        allow_abbrev=False,
    )
    parser.add_argument("--model-path", type=Path, metavar="DIR", help="checkpoint (default: the one in the package)")
    parser.add_argument("--released", action="store_true", help="the sizes of DeepSeek-V4.1-Flash; needs no checkpoint")
    parser.add_argument("--kv-cache-dtype", choices=("fp4", "bf16"), default="fp4", help="format (default: fp4)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for name, text in (
        ("page-size", "tokens in a page"),
        ("max-total-tokens", "tokens that the pool of global entries holds"),
        ("window-cache-tokens", "tokens that the pool of windows holds for finished prompts"),
    ):
        default = _DEFAULTS[name]
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: {default})")
    return parser


def _config(directory: Path, faults: list[str]) -> Config | None:
    path = directory / "config.json"
    try:
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004, TRY301 - one message for everything but an object
        return Config.from_json(data)
    except BadConfig as error:
        faults += [f"{path}: {fault}" for fault in error.faults]
    except OSError as error:
        faults.append(f"{path} cannot be read: {error.strerror}; give --model-path or --released")
    except (ValueError, RecursionError) as error:
        faults.append(f"{path} is not JSON: {error}; copy the file again")
    return None


def _document(geometry: Geometry, lines: Sequence[Line]) -> str:
    table = [{"scope": line.scope, "item": line.item, "bytes": _number(line)} for line in lines]
    head: dict[str, Any] = {"kv_cache_dtype": geometry.cache_type, "page_size": geometry.page_size}
    return json.dumps(head | {"bytes_per_token": float(geometry.bytes_per_token), "table": table}, indent=2) + "\n"


def _text(geometry: Geometry, lines: Sequence[Line]) -> str:
    rows = [("per", "what", "bytes"), *((line.scope, line.item, f"{_number(line):,}") for line in lines)]
    first, second, third = (max(len(row[column]) for row in rows) for column in range(3))
    head = f"{geometry.cache_type} caches, pages of {geometry.page_size} tokens, windows of {geometry.window}\n"
    return head + "".join(f"{a:<{first}}  {b:<{second}}  {c:>{third}}\n" for a, b, c in rows)


def _number(line: Line) -> int | float:
    return line.bytes.numerator if line.bytes.denominator == 1 else float(line.bytes)

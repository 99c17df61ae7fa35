"""The engine that the hooks were written for: its version, and the files that must be as they were, byte for byte."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Final

VERSION: Final = "0.5.23"


def root() -> Path:
    """The folder of the installed engine.

    Raises:
        ModuleNotFoundError: There is none.
    """
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("sglang is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def version() -> str:
    """The version of the installed engine, as its distribution says."""
    return importlib.metadata.version("sglang")


def digest(path: Path) -> str | None:
    """SHA-256 of a file in hexadecimal; none without the file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def faults(files: frozenset[str]) -> list[str]:
    """Say why hooks that lean on some files cannot be used, each reason in a clause of its own; empty when they can.

    Args:
        files: Paths below the engine's package; `digests` knows each.
    """
    from epd_sglang import digests  # noqa: PLC0415 - the table is only for who compares

    try:
        result, folder = version(), root()
    except ModuleNotFoundError:
        return ["SGLang is not installed"]
    if result != VERSION:
        return [f"SGLang is {result}, and this plugin was written for {VERSION}"]
    known = digests.known()
    seen = {name: digest(folder / name) for name in sorted(files)}
    return [
        f"{folder / name} is {'missing' if value is None else f'not the file of SGLang {VERSION}'}"
        for name, value in seen.items()
        if value != known[name]
    ]

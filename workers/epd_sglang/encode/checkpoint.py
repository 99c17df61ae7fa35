"""Which weights a server runs, as a number that both sides of the encode tier can compare."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

from epd_sglang import engine
from epd_sglang.encode.grid import SCHEMA

INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_CONFIG: Final = "config.json"
_BITS: Final = 63
_LENGTH_BYTES: Final = 8
VISION: Final = ("vision.", "aligner.", "image_")
"""How the names of an encoder's tensors begin."""


def digest(model_path: str) -> int:
    """Of a checkpoint, the engine's version and our wire format, 63 bits.

    It takes the configuration and the list of tensors with their files or offsets, not the tensors themselves, which
    would take an hour to read. A checkpoint that is no local folder counts by its name.
    """
    state = hashlib.sha256(f"{engine.VERSION}/{SCHEMA}/".encode())
    folder = Path(model_path)
    if folder.is_dir():
        for part in (_bytes(folder / _CONFIG), _bytes(folder / INDEX) or _header(folder / _SINGLE)):
            state.update(hashlib.sha256(part).digest())
    else:
        state.update(model_path.encode())
    return int.from_bytes(state.digest()[:8], "big") >> (64 - _BITS)


def shards(model_path: str) -> list[str]:
    """Files that hold an encoder's tensors, by the checkpoint's index; empty without one."""
    content = _bytes(Path(model_path) / INDEX)
    if not content:
        return []
    names: dict[str, str] = json.loads(content)["weight_map"]
    return sorted({file for name, file in names.items() if name.startswith(VISION)})


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _header(path: Path) -> bytes:
    """The header of a safetensors file: an eight-byte length, then names, shapes and offsets as JSON."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little"))

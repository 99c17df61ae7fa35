"""Tells checkpoints apart without reading them whole."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK: Final = 4096
BLOCKS: Final = 64
"""Samples of a file of weights: any training changes all of it, and 150 GB take minutes to read."""


def digest(folder: Path) -> str:
    """SHA-256 over every JSON file, and over name, size and samples of every file of weights.

    Two checkpoints that differ in a few bytes alone, and in the samples of no file, have the same one.

    Raises:
        OSError: A file cannot be read.
        FileNotFoundError: There are no weights.
    """
    total = hashlib.sha256()
    files = sorted(path for path in folder.iterdir() if path.suffix in {".json", ".safetensors"})
    if not any(path.suffix == ".safetensors" for path in files):
        raise FileNotFoundError(f"{folder} has no .safetensors")
    for path in files:
        size = path.stat().st_size
        total.update(f"{path.name} {size}\n".encode())
        if path.suffix == ".json":
            total.update(path.read_bytes())
        else:
            for block in _samples(path, size):
                total.update(block)
    return total.hexdigest()


def _samples(path: Path, size: int) -> Iterator[bytes]:
    """Blocks at equal distances, the first and the last among them."""
    last = max(0, size - BLOCK)
    file = os.open(path, os.O_RDONLY)
    try:
        for place in sorted({last * number // (BLOCKS - 1) for number in range(BLOCKS)}):
            yield os.pread(file, BLOCK, place)
    finally:
        os.close(file)

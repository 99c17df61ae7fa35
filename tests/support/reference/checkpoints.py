"""A checkpoint small enough to start dozens of servers on: untrained, as what is said does not matter here."""

from __future__ import annotations

import shutil
from functools import lru_cache
from typing import TYPE_CHECKING

from epd_workers.reference.model import checkpoint
from epd_workers.reference.model.loaded import PACKAGED, LoadedModel
from epd_workers.reference.model.transformer import Transformer, initialise
from tests.support.reference.small import config, sharpen

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT = 8192


def write(directory: Path, seed: int = 0) -> Path:
    """A checkpoint directory whose answers depend on their prompts: its weights are larger than a fresh model's."""
    made = config(CONTEXT)
    checkpoint.save(sharpen(initialise(Transformer(made), seed)), made, directory)
    shutil.copy(PACKAGED / "tokenizer.json", directory)
    return directory


@lru_cache(maxsize=8)
def load(directory: Path, context_length: int) -> LoadedModel:
    """The model of a directory, once for all servers of this process."""
    return LoadedModel.load(directory, context_length)

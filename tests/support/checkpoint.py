"""What the engine makes of a checkpoint; it loads torch for that, and so does this, but not before it is asked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from epd_workers.reference.model.config import Config

if TYPE_CHECKING:
    from epd_workers.reference.cache.geometry import CacheType, Geometry

PAGE = 64


def packaged_config() -> Config:
    """Of the checkpoint in the worker's image."""
    from epd_workers.reference.model.loaded import PACKAGED  # noqa: PLC0415 - loads torch

    return Config.from_json(json.loads((PACKAGED / "config.json").read_text(encoding="utf-8")))


def geometry(config: Config, cache: CacheType) -> Geometry:
    """Sizes of its keys and values in pages of 64 tokens."""
    from epd_workers.reference.cache.geometry import Geometry as Engine  # noqa: PLC0415 - loads torch

    return Engine.of(config, PAGE, cache)

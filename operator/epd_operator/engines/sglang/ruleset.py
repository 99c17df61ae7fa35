"""SGLang's rules, collected from the modules that hold them."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Final

from epd_operator.engines.ruleset import Ruleset
from epd_operator.engines.sglang.base import CHECKPOINT
from epd_operator.engines.sglang.catalogue import catalogue
from epd_operator.engines.sglang.ownership import OWNED
from epd_operator.engines.version import KNOWN

MODULES = (
    "parallel",
    "context",
    "chunk",
    "moe",
    "budget",
    "elastic",
    "attention",
    "graph",
    "replay",
    "speculation",
    "model",
    "disaggregation",
    "cache",
    "hicache",
    "serving",
    "media",
    "validation",
    "metrics",
    "loading",
    "lora",
    "mamba",
    "agreement",
    "hole",
    "resource",
)
_FOUND = [import_module(f"{__package__}.{name}") for name in MODULES if find_spec(f"{__package__}.{name}") is not None]

SGLANG: Final = Ruleset(
    engine_type="SGLang",
    versions=KNOWN,
    catalogue=lambda version, _role: catalogue(version),
    owned=OWNED,
    rules=tuple(rule for module in _FOUND for rule in getattr(module, "RULES", ())),
    resolved=tuple(value for module in _FOUND for value in getattr(module, "RESOLVED", ())),
    checkpoint=CHECKPOINT,
    default_platform="cuda-sm90",
)

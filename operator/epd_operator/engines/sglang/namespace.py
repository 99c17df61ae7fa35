"""The name under which a deployment keeps pages in a storage that others may use, too.

The tricky idea: what SGLang calls a stored page says which tokens were read, and nothing of the weights, the engine or
the layout of its bytes; one layout is then read as another without an error. The name made here differs wherever the
bytes may, so that the other one's page is simply not there.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from epd_operator.engines.sglang.flags import written
from epd_operator.engines.sglang.identity import agreement, started
from epd_operator.engines.sglang.parallel import ATTN_CP_SIZE, DCP_SIZE, PP_SIZE
from epd_operator.rules.process import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.api.names import RoleName

DIGITS: Final = 16

_WEIGHTS: Final = (
    "path",
    "revision",
    "source.persistentVolumeClaim.claimName",
    "source.persistentVolumeClaim.subPath",
    "source.image.reference",
)

_SHARDS: Final = (ATTN_CP_SIZE, DCP_SIZE, PP_SIZE)
"""What cuts a page of DeepSeek-V4.1 into parts; every tensor-parallel rank holds all of it.
Source: SGLang 0.5.23, managers/cache_controller.py, _generate_storage_config."""

_NUMBERS: Final = ("dtype", "json-model-override-args", "load-format", "model-impl", "quantization")
"""Flags that change what is computed and that no peer asks about."""


def namespace(version: str, platform: str, role: RoleName, tenant: str, document: Mapping[str, Any]) -> str:
    """The name for the pages of a role.

    Args:
        version: The version whose facts apply.
        platform: What the pods run on.
        role: Whose pages they are; roles that cut pages alike share them.
        tenant: The deployment, by namespace and name.
        document: The spec as written.

    Returns:
        16 hex digits of SHA-256.
    """
    prefill = started(version, platform, "prefill", document)
    own = started(version, platform, role, document)
    inputs = {
        "tenant": tenant,
        "engine": [read(document, f"engine.{part}") for part in ("version", "image")],
        "platform": platform,
        "model": [read(document, f"model.{part}") or None for part in _WEIGHTS],
        "layout": agreement(prefill),
        "numbers": {name: value for name in _NUMBERS if (value := written(name).value(prefill)) is not None},
        "shards": [size.value(own) for size in _SHARDS],
    }
    canonical = json.dumps(inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:DIGITS]

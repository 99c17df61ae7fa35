"""The engine's own switches between a GPU's way and torch's, set to torch's."""

from __future__ import annotations

import os
from typing import Final

SWITCHES: Final = {
    "SGLANG_OPT_USE_TILELANG_MHC_PRE": "0",
    "SGLANG_OPT_USE_TILELANG_MHC_POST": "0",
    "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1",
    "SGLANG_OPT_USE_TOPK_V2": "0",
    "SGLANG_OPT_FLASHMLA_SPARSE_PREFILL": "0",
}
"""Source: SGLang 0.5.23, srt/environ.py."""


def turn() -> None:
    """Set them for this process and its children. What the user has set to something else cannot run here."""
    os.environ.update(SWITCHES)

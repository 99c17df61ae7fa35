"""A second, independent, slow DeepSeek-V4.1 in float64, written from the formulas only; it shares no code with ours."""

from __future__ import annotations

from tests.reference.model.oracle_draft import Draft, context, draft
from tests.reference.model.oracle_formats import KvMode
from tests.reference.model.oracle_rows import Replay
from tests.reference.model.oracle_text import LayerTrace, Trace, encoder_replay, forward
from tests.reference.model.oracle_vision import align, span, vision

__all__ = [
    "Draft",
    "KvMode",
    "LayerTrace",
    "Replay",
    "Trace",
    "align",
    "context",
    "draft",
    "encoder_replay",
    "forward",
    "span",
    "vision",
]

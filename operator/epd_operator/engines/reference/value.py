"""What rules read of a Reference process: its flags with the engine's defaults, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines.reference.profile import REFERENCE
from epd_operator.rules.expression import ROLE, Leaf, field_of, named, when

if TYPE_CHECKING:
    from epd_operator.rules.expression import Expr

SOURCE: Final = "docs/reference/reference-engine.md"
WINDOW: Final = 128
"""Rows that a replay runs again: the sliding window of DeepSeek-V4.1."""


def flag(name: str) -> Expr:
    """A flag of prefill and decode, with its default."""
    spec = REFERENCE.catalogue["prefill"][name]
    return Leaf("flag", name, "int" if spec.type == "int" else "str").otherwise(spec.default)


PAGE: Final = flag("page-size")
CHUNK: Final = flag("chunked-prefill-size")
KEPT: Final = flag("window-cache-tokens")
CACHE: Final = flag("prefix-cache")
PRESET: Final = Leaf("flag", "decoder-replay-preset", "str")
DECODER_FIELD: Final = field_of("decoderReplay", "str")
ENCODER_FIELD: Final = field_of("encoderReplay", "bool")
DECODER_ON: Final = ~(DECODER_FIELD == "Off")
ENCODER_ON: Final = ENCODER_FIELD == True  # noqa: E712 - builds an expression

DECODER_REPLAY: Final = named(
    "decoder_replay", when(ROLE == "prefill", when(DECODER_ON, "on", "off"), None), DECODER_FIELD
)
"""Whether the decoder half runs on the last window of each chunk only; `Auto` is on."""
ENCODER_REPLAY: Final = named(
    "encoder_replay", when(ROLE == "prefill", when(ENCODER_ON, "on", "off"), None), ENCODER_FIELD
)
"""Whether windows of the encoder half are rebuilt on prefix hits."""

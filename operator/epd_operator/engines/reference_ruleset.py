"""What the Reference engine would refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines import hosting
from epd_operator.engines.expression import ROLE, Leaf, at, declared, every, field_of, named, spec_of, starts, when
from epd_operator.engines.reference import REFERENCE
from epd_operator.engines.rule import Rule
from epd_operator.engines.ruleset import Ruleset
from epd_operator.engines.shared import RULES, differ, transfer_backend

if TYPE_CHECKING:
    from epd_operator.engines.expression import Expr
    from epd_operator.engines.flag import Catalogue

_SOURCE: Final = "docs/reference/reference-engine.md"
_PATH: Final = spec_of("model.path", "str")


def _flag(name: str) -> Expr:
    spec = REFERENCE.catalogue["prefill"][name]
    return Leaf("flag", name, "int" if spec.type == "int" else "str").otherwise(spec.default)


def _pair(name: str) -> Rule:
    return Rule(
        id=f"pair-{name}",
        when=declared("decode") & differ(_flag(name)),
        sides=(at("prefill", _flag(name)), at("decode", _flag(name))),
        says=f"prefill and decode must have the same {name}, or they cannot read what they hand over",
        fix=f"set {name} alike, or leave it out on both",
        source=_SOURCE,
        roles=(),
    )


_WINDOW: Final = 128
"""Rows that a replay runs again: the sliding window of DeepSeek-V4.1."""

_PAGE: Final = _flag("page-size")
_CHUNK: Final = _flag("chunked-prefill-size")
_KEPT: Final = _flag("window-cache-tokens")
_CACHE: Final = _flag("prefix-cache")
_PRESET: Final = Leaf("flag", "decoder-replay-preset", "str")
_DECODER_FIELD: Final = field_of("decoderReplay", "str")
_ENCODER_FIELD: Final = field_of("encoderReplay", "bool")
_DECODER_ON: Final = ~(_DECODER_FIELD == "Off")
_ENCODER_ON: Final = _ENCODER_FIELD == True  # noqa: E712 - builds an expression
_LEAST_CHUNK: Final = _PAGE + _WINDOW

DECODER_REPLAY: Final = named(
    "decoder_replay", when(ROLE == "prefill", when(_DECODER_ON, "on", "off"), None), _DECODER_FIELD
)
"""Whether the decoder half runs on the last window of each chunk only; `Auto` is on."""
ENCODER_REPLAY: Final = named(
    "encoder_replay", when(ROLE == "prefill", when(_ENCODER_ON, "on", "off"), None), _ENCODER_FIELD
)
"""Whether windows of the encoder half are rebuilt on prefix hits."""

_REPLAY_RULES: Final = (
    Rule(
        id="reference-encoder-replay-chunk",
        when=_ENCODER_ON & (_CHUNK < _LEAST_CHUNK),
        sides=(_ENCODER_FIELD, _CHUNK, _PAGE),
        says="encoder replay runs up to 128 rows in front of a chunk, which must have room for them and a page: "
        "{least} tokens",
        fix="raise chunked-prefill-size to {least} or more, or remove encoder replay",
        source="SGLang 0.5.23, arg_groups/deepseek_v4_hook.py",
        roles=("prefill",),
        shows={"least": _LEAST_CHUNK},
    ),
    Rule(
        id="reference-encoder-replay-idle",
        when=_ENCODER_ON & (_CACHE == "off"),
        sides=(_ENCODER_FIELD, _CACHE),
        says="encoder replay works on prompts whose beginning is cached, so without a prefix cache it does nothing",
        fix="set prefix-cache to on, or remove encoder replay",
        source=_SOURCE,
        severity="warning",
        roles=("prefill",),
    ),
    Rule(
        id="reference-decoder-replay-idle",
        when=_DECODER_ON & (_CHUNK <= _WINDOW),
        sides=(_DECODER_FIELD, _CHUNK),
        says="decoder replay skips what lies before the last 128 rows of a chunk: in chunks this small it does nothing",
        fix="raise chunked-prefill-size well above 128, or set decoderReplay to Off",
        source=_SOURCE,
        severity="warning",
        roles=("prefill",),
    ),
    Rule(
        id="reference-replay-preset-idle",
        when=_PRESET.given & ~_DECODER_ON,
        sides=(_PRESET, _DECODER_FIELD),
        says="the preset says how decoder replay splits the layers, and decoder replay is off",
        fix="leave the preset out, or set decoderReplay to On",
        source=_SOURCE,
        severity="warning",
        roles=("prefill",),
    ),
    Rule(
        id="reference-prefix-cache-idle",
        when=every(_CACHE == "on", _KEPT < _WINDOW, ~_ENCODER_ON),
        sides=(_CACHE, _KEPT, _ENCODER_FIELD),
        says="a cached beginning is of use only with the window of 128 tokens at its end, which is neither kept nor "
        "rebuilt",
        fix="raise window-cache-tokens to 128 or more, or turn encoder replay on",
        source=_SOURCE,
        severity="warning",
        roles=("prefill",),
    ),
)

_RULES: Final = (
    Rule(
        id="reference-model-path",
        when=_PATH.given & ~starts(_PATH, "/"),
        sides=(_PATH,),
        says="the Reference engine loads a directory, not a hub id",
        fix="give an absolute path, or leave it out to serve the checkpoint in the image",
        source=_SOURCE,
        roles=(),
    ),
    Rule(
        id="reference-total-tokens",
        when=_flag("max-total-tokens") < _PAGE,
        sides=(_flag("max-total-tokens"), _PAGE),
        says="all pages together must hold at least one page",
        fix="raise max-total-tokens or lower page-size",
        source=_SOURCE,
        roles=("prefill", "decode"),
    ),
    Rule(
        id="reference-page-size-odd",
        when=_PAGE % 2 == 1,
        sides=(_PAGE,),
        says="some layers keep one entry for two tokens, so a page must hold whole pairs",
        fix="use an even number, such as {even}",
        source="DeepSeek-V4.1-Flash config.json, compress_ratios",
        roles=("prefill", "decode"),
        shows={"even": _PAGE + 1},
    ),
    _pair("page-size"),
    _pair("kv-cache-dtype"),
    transfer_backend(REFERENCE.transfers, "the Reference engine"),
    *_REPLAY_RULES,
)


def _catalogue(_version: str, role: str) -> Catalogue:
    return next(flags for name, flags in REFERENCE.catalogue.items() if name == role)


RULESET: Final = Ruleset(
    engine_type=REFERENCE.engine_type,
    versions=(REFERENCE.version,),
    catalogue=_catalogue,
    owned={},
    rules=(*RULES, *hosting.rules("the Reference engine", REFERENCE.pre_stop_seconds), *_RULES),
    resolved=(DECODER_REPLAY, ENCODER_REPLAY),
    checkpoint={},
    default_platform=REFERENCE.default_platform,
    environment=frozenset(str(entry["name"]) for entry in REFERENCE.environment),
)

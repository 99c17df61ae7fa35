"""What the Reference engine would refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines import hosting
from epd_operator.engines.reference import swa_pool
from epd_operator.engines.reference.profile import REFERENCE
from epd_operator.engines.reference.value import (
    CACHE,
    CHUNK,
    DECODER_FIELD,
    DECODER_ON,
    DECODER_REPLAY,
    ENCODER_FIELD,
    ENCODER_ON,
    ENCODER_REPLAY,
    KEPT,
    PAGE,
    PRESET,
    SOURCE,
    WINDOW,
    flag,
)
from epd_operator.engines.sglang import plugin
from epd_operator.engines.shared import RULES, differ, transfer_backend
from epd_operator.rules.expression import at, declared, every, spec_of, starts
from epd_operator.rules.rule import Rule
from epd_operator.rules.ruleset import Ruleset

if TYPE_CHECKING:
    from epd_operator.rules.flag import Catalogue

_PATH: Final = spec_of("model.path", "str")
_LEAST_CHUNK: Final = PAGE + WINDOW
_ELSEWHERE: Final = f"{plugin.NAME} is one of SGLang {plugin.RELEASE}"


def _pair(name: str) -> Rule:
    return Rule(
        id=f"pair-{name}",
        when=declared("decode") & differ(flag(name)),
        sides=(at("prefill", flag(name)), at("decode", flag(name))),
        says=f"prefill and decode must have the same {name}, or they cannot read what they hand over",
        fix=f"set {name} alike, or leave it out on both",
        source=SOURCE,
        roles=(),
    )


_REPLAY_RULES: Final = (
    Rule(
        id="reference-encoder-replay-chunk",
        when=ENCODER_ON & (CHUNK < _LEAST_CHUNK),
        sides=(ENCODER_FIELD, CHUNK, PAGE),
        says="encoder replay runs up to 128 rows in front of a chunk, which must have room for them and a page: "
        "{least} tokens",
        fix="raise chunked-prefill-size to {least} or more, or remove encoder replay",
        source="SGLang 0.5.23, arg_groups/deepseek_v4_hook.py",
        roles=("prefill",),
        shows={"least": _LEAST_CHUNK},
    ),
    Rule(
        id="reference-encoder-replay-idle",
        when=ENCODER_ON & (CACHE == "off"),
        sides=(ENCODER_FIELD, CACHE),
        says="encoder replay works on prompts whose beginning is cached, so without a prefix cache it does nothing",
        fix="set prefix-cache to on, or remove encoder replay",
        source=SOURCE,
        severity="warning",
        roles=("prefill",),
    ),
    Rule(
        id="reference-decoder-replay-idle",
        when=DECODER_ON & (CHUNK <= WINDOW),
        sides=(DECODER_FIELD, CHUNK),
        says="decoder replay skips what lies before the last 128 rows of a chunk: in chunks this small it does nothing",
        fix="raise chunked-prefill-size well above 128, or set decoderReplay to Off",
        source=SOURCE,
        severity="warning",
        roles=("prefill",),
    ),
    Rule(
        id="reference-replay-preset-idle",
        when=PRESET.given & ~DECODER_ON,
        sides=(PRESET, DECODER_FIELD),
        says="the preset says how decoder replay splits the layers, and decoder replay is off",
        fix="leave the preset out, or set decoderReplay to On",
        source=SOURCE,
        severity="warning",
        roles=("prefill",),
    ),
    Rule(
        id="reference-prefix-cache-idle",
        when=every(CACHE == "on", KEPT < WINDOW, ~ENCODER_ON),
        sides=(CACHE, KEPT, ENCODER_FIELD),
        says="a cached prefix is useful only with the window of 128 tokens at its end, which is neither kept nor "
        "rebuilt",
        fix="raise window-cache-tokens to 128 or more, or turn encoder replay on",
        source=SOURCE,
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
        source=SOURCE,
        roles=(),
    ),
    Rule(
        id="reference-total-tokens",
        when=flag("max-total-tokens") < PAGE,
        sides=(flag("max-total-tokens"), PAGE),
        says="all pages together must hold at least one page",
        fix="raise max-total-tokens or lower page-size",
        source=SOURCE,
        roles=("prefill", "decode"),
    ),
    Rule(
        id="reference-page-size-odd",
        when=PAGE % 2 == 1,
        sides=(PAGE,),
        says="some layers keep one entry for two tokens, so a page must hold whole pairs",
        fix="use an even number, such as {even}",
        source="DeepSeek-V4.1-Flash config.json, compress_ratios",
        roles=("prefill", "decode"),
        shows={"even": PAGE + 1},
    ),
    _pair("page-size"),
    _pair("kv-cache-dtype"),
    transfer_backend(REFERENCE.transfers, "the Reference engine"),
    *_REPLAY_RULES,
    *swa_pool.RULES,
)


def _catalogue(_version: str, role: str) -> Catalogue:
    return next(flags for name, flags in REFERENCE.catalogue.items() if name == role)


RULESET: Final = Ruleset(
    engine_type=REFERENCE.engine_type,
    versions=(REFERENCE.version,),
    catalogue=_catalogue,
    owned={},
    rules=(*RULES, *hosting.rules("the Reference engine", REFERENCE.pre_stop_seconds, elsewhere=_ELSEWHERE), *_RULES),
    resolved=(DECODER_REPLAY, ENCODER_REPLAY),
    checkpoint={},
    default_platform=REFERENCE.default_platform,
    environment=frozenset(str(entry["name"]) for entry in REFERENCE.environment),
)

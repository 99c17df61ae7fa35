"""Linear attention: flags that DeepSeek-V4.1, which has none, does not need, and that are checked all the same."""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.base import IS_PD, IS_PREFILL, IS_SM100, MODE
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.rules.expression import every, some, when
from epd_operator.rules.rule import ROLES, Rule

_SOURCE: Final = "SGLang 0.5.23, arg_groups/attention_hook.py, handle_linear_attn_backend"
_DECIDES: Final = "attention_hook.handle_linear_attn_backend"
_ALL: Final = written("linear-attn-backend")
_DECODE: Final = written("linear-attn-decode-backend")
_VERIFY: Final = written("linear-attn-verify-backend")
_STATE: Final = written("mamba-ssm-dtype")
_IS_BFLOAT: Final = _STATE == "bfloat16"

_DECODES: Final = _DECODE.otherwise(
    when(
        every(IS_SM100, ~(_ALL == "helion"), _IS_BFLOAT),
        "flashinfer",
        when(_ALL == "flashkda", "triton", flag("linear-attn-backend")),
    )
)
_VERIFIES: Final = _VERIFY.otherwise(when(_DECODES == "flashinfer", "flashinfer", None))
_REPLAY: Final = flag("enable-linear-replayssm")
_REPLAY_VERIFY: Final = flag("enable-linear-replayssm-spec")
_MODE: Final = env("SGLANG_RAGGED_VERIFY_MODE")
_IS_RAGGED: Final = _MODE.given & ~(_MODE == "static")

RULES: Final = (
    Rule(
        id="linear-attention-backend",
        when=some(
            _DECODE == "flashkda",
            every(IS_SM100, ~_IS_BFLOAT, (_DECODES == "flashinfer") | (_VERIFIES == "flashinfer")),
        ),
        sides=(_DECODE, _VERIFY, _ALL, _STATE),
        says="flashkda does not decode, and flashinfer on SM100 keeps bfloat16 state",
        fix="remove the linear-attn flags: DeepSeek-V4.1 has no linear attention",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="linear-attention-replay",
        when=_REPLAY & some(~_DECODES.isin(("triton", "helion")), IS_PD, flag("linear-replayssm-cache-len") < 1),
        sides=(written("enable-linear-replayssm"), _DECODE, MODE, written("linear-replayssm-cache-len")),
        says="buffered linear attention decodes with triton or helion, in one server, with a cache of at least 1",
        fix="remove enable-linear-replayssm: DeepSeek-V4.1 has no linear attention",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="linear-attention-replay-verify",
        when=_REPLAY_VERIFY
        & some(
            flag("speculative-eagle-topk").given & ~(flag("speculative-eagle-topk") == 1),
            ~_DECODES.isin(("triton", "flashinfer")),
            _IS_RAGGED
            & ~every(
                written("speculative-algorithm") == "DSPARK",
                ~flag("enable-return-aux-hidden-states"),
                _VERIFY.isin(("triton", "nv_cutedsl")),
            ),
            IS_PREFILL,
            _REPLAY,
        ),
        sides=(written("enable-linear-replayssm-spec"), _DECODE, _MODE, MODE, written("enable-linear-replayssm")),
        says="buffered verification of linear attention has limits that this command line breaks",
        fix="remove enable-linear-replayssm-spec: DeepSeek-V4.1 has no linear attention",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
)

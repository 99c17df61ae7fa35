"""Speculative decoding: DSpark, the only kind that DeepSeek-V4.1 has, and what it cannot be combined with."""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.attention import SPECULATES
from epd_operator.engines.sglang.base import DRAFT_BLOCK, IS_DECODE, IS_PD, IS_PREFILL, IS_V41, MODE
from epd_operator.engines.sglang.disaggregation import TRANSFER_BACKEND
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.moe import A2A_BACKEND
from epd_operator.engines.sglang.parallel import (
    ATTN_CP_SIZE,
    ATTN_CP_SIZE_ASKED,
    ATTN_DP_SIZE,
    ATTN_DP_SIZE_ASKED,
    DCP_SIZE,
    DP_SIZE_ASKED,
    ENABLE_DP_LM_HEAD,
    PP_SIZE,
    PREFILL_CP,
    TP_SIZE,
)
from epd_operator.engines.sglang.release import since
from epd_operator.engines.sglang.switch import switch
from epd_operator.rules.expression import every, named, some, when
from epd_operator.rules.rule import ROLES, Rule

_SOURCE: Final = "SGLang 0.5.23, arg_groups/speculative_hook.py"
_V4: Final = "SGLang 0.5.23, arg_groups/deepseek_v4_hook.py"
_FEATURES: Final = "deepseek_v4_hook.validate_deepseek_v41_features"
_DEFAULTS: Final = "deepseek_v4_hook.apply_deepseek_v4_defaults"
_HANDLE: Final = "speculative_hook.handle_speculative_decoding"
_DSPARK: Final = "speculative_hook._handle_dspark"
_READ: Final = ("dsv41-2026-09", "0.5.23")
_RELEASE: Final = "0.5.23"
_DEFAULT_BLOCK: Final = 7

_ALGORITHM: Final = written("speculative-algorithm")
_TOKENS: Final = written("speculative-num-draft-tokens")
_BLOCK: Final = written("speculative-dspark-block-size")
_DRAFT: Final = written("speculative-draft-model-path")
_VERIFY: Final = env("SGLANG_RAGGED_VERIFY_MODE")
_COORDINATES: Final = switch("SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION")
_IS_RAGGED: Final = _VERIFY.isin(("cap-accept", "compact"))

_IS_EAGLE: Final = SPECULATES & (_ALGORITHM == "EAGLE")
IS_DSPARK: Final = SPECULATES & (_ALGORITHM == "DSPARK")
SPECULATIVE_ALGORITHM: Final = named("speculative_algorithm", when(SPECULATES, _ALGORITHM, None), _ALGORITHM)
"""What drafts tokens; absent when nothing does, also when the flag only says which hidden states to return."""
DSPARK_BLOCK: Final = named(
    "dspark_block_size",
    _BLOCK.otherwise(DRAFT_BLOCK).otherwise(when(_TOKENS.given, None, _DEFAULT_BLOCK)),
    _BLOCK,
    DRAFT_BLOCK,
)
"""Tokens that DSpark drafts at a time; absent when only the number of verified tokens is known."""
SPECULATIVE_NUM_DRAFT_TOKENS: Final = named(
    "speculative_num_draft_tokens", when(IS_DSPARK, (DSPARK_BLOCK + 1).otherwise(_TOKENS), _TOKENS), _TOKENS, _BLOCK
)
"""Tokens that one verification looks at: the block and the token before it."""
SPECULATIVE_NUM_STEPS: Final = named(
    "speculative_num_steps",
    when(IS_DSPARK, 1, written("speculative-num-steps")),
    written("speculative-num-steps"),
)

_TRANSFERS: Final = since(_RELEASE, TRANSFER_BACKEND.isin(("mooncake", "nixl")), TRANSFER_BACKEND == "mooncake")
_PREFILL_CP_WORKS: Final = every(
    IS_PREFILL,
    PREFILL_CP,
    flag("cp-strategy") == "interleave",
    since(
        _RELEASE,
        True,
        every(
            ATTN_DP_SIZE_ASKED == 1,
            DP_SIZE_ASKED == 1,
            (ATTN_CP_SIZE_ASKED == 1) | (ATTN_CP_SIZE_ASKED == TP_SIZE),
        ),
    ),
)
_PD: Final = every(IS_V41, SPECULATES, IS_PD)
_DP: Final = IS_DSPARK & (ATTN_DP_SIZE > 1)

_KINDS: Final = (
    Rule(
        id="speculation-kind",
        when=SPECULATES & ~_ALGORITHM.isin(("EAGLE", "DSPARK")),
        sides=(_ALGORITHM,),
        says="DeepSeek-V4.1 speculates with DSPARK, spelled exactly so, not with {kind}",
        fix="set speculative-algorithm to DSPARK or leave it out",
        source=_V4,
        decided_by=_DEFAULTS,
        roles=ROLES,
        stated=_READ,
        shows={"kind": _ALGORITHM},
    ),
    Rule(
        id="speculation-eagle-topk",
        when=_IS_EAGLE & ~(flag("speculative-eagle-topk") == 1),
        sides=(_ALGORITHM,),
        says="DeepSeek-V4.1 drafts with DSPARK only, not with EAGLE",
        fix="set speculative-algorithm to DSPARK or leave it out",
        source=_V4,
        decided_by=_DEFAULTS,
        roles=ROLES,
    ),
    Rule(
        id="speculation-eagle",
        when=every(IS_V41, _IS_EAGLE, flag("speculative-eagle-topk") == 1),
        sides=(_ALGORITHM,),
        says="DeepSeek-V4.1 has no EAGLE: it speculates with DSPARK only",
        fix="set speculative-algorithm to DSPARK or leave it out",
        source=_V4,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        id="speculation-verify-mode",
        when=every(
            SPECULATES | flag("enable-linear-replayssm-spec"),
            _VERIFY.given,
            ~_VERIFY.isin(("static", "cap-accept", "compact")),
        ),
        sides=(_VERIFY,),
        says="verification is static, cap-accept or compact, not {mode}",
        fix="set SGLANG_RAGGED_VERIFY_MODE to one of them, or remove it",
        source="SGLang 0.5.23, speculative/ragged_verify.py",
        decided_by="ragged_verify.read_ragged_verify_mode",
        roles=ROLES,
        shows={"mode": _VERIFY},
    ),
)

_DISAGGREGATED: Final = (
    Rule(
        id="dspark-disaggregation-verify",
        when=_PD & _IS_RAGGED,
        sides=(_ALGORITHM, MODE, _VERIFY),
        says="DSpark across prefill and decode pods verifies in static mode only",
        fix="remove SGLANG_RAGGED_VERIFY_MODE",
        source=_V4,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        id="dspark-disaggregation-transfer",
        when=_PD & ~_TRANSFERS,
        sides=(_ALGORITHM, TRANSFER_BACKEND),
        says="DSpark moves its draft KV between pods with {backends} only",
        fix="set the transfer backend to {backends}, or remove speculative-algorithm on both roles",
        source=_V4,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
        shows={"backends": since(_RELEASE, "mooncake or nixl", "mooncake")},
    ),
    Rule(
        id="dspark-disaggregation-context-parallel",
        when=every(_PD, PREFILL_CP | ~(ATTN_CP_SIZE_ASKED == 1), ~_PREFILL_CP_WORKS),
        sides=(_ALGORITHM, MODE, PREFILL_CP, ATTN_CP_SIZE_ASKED),
        says="DSpark across pods has context parallelism in one form only, prefill CP with the strategy interleave "
        "on prefill pods",
        fix="remove attn-cp-size; on prefill, set enable-prefill-cp with cp-strategy interleave; on decode, remove "
        "both",
        source=_V4,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        id="dspark-disaggregation-dcp",
        when=_PD & ~(DCP_SIZE == 1),
        sides=(_ALGORITHM, MODE, DCP_SIZE),
        says="DSpark across pods has no decode context parallelism",
        fix="set dcp-size to 1, or remove speculative-algorithm on both roles",
        source=_V4,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        id="speculation-decode-radix-cache",
        when=every(SPECULATES, IS_DECODE, flag("disaggregation-decode-enable-radix-cache")),
        sides=(_ALGORITHM, written("disaggregation-decode-enable-radix-cache")),
        says="a decode pod of this version cannot keep a radix cache while it speculates",
        fix="remove disaggregation-decode-enable-radix-cache or speculative-algorithm",
        source="SGLang commit 006cbb66, srt/arg_groups/speculative_hook.py",
        decided_by=_HANDLE,
        roles=ROLES,
        until=_RELEASE,
        stated=("dsv41-2026-09",),
    ),
)

_DATA_PARALLEL: Final = (
    Rule(
        id="dspark-dp-lm-head",
        when=_DP & ~ENABLE_DP_LM_HEAD,
        sides=(_ALGORITHM, ATTN_DP_SIZE, written("enable-dp-lm-head")),
        says="DSpark with attention data parallelism needs a data-parallel LM head",
        fix="set enable-dp-lm-head to true",
        source=_SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
    ),
    Rule(
        id="dspark-dp-experts",
        when=_DP & ~A2A_BACKEND.isin(("none", "megamoe", "mori")),
        sides=(_ALGORITHM, ATTN_DP_SIZE, A2A_BACKEND),
        says="DSpark with attention data parallelism works with the all-to-all back ends none, megamoe and mori, "
        "not {backend}",
        fix="set moe-a2a-backend to none or megamoe, or attn-dp-size to 1",
        source=_SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
        shows={"backend": A2A_BACKEND},
    ),
    Rule(
        id="dspark-dp-verify",
        when=every(_DP, ~(A2A_BACKEND == "none") | _COORDINATES, _IS_RAGGED),
        sides=(_ALGORITHM, ATTN_DP_SIZE, A2A_BACKEND, _VERIFY),
        says="DSpark with attention data parallelism and an expert all-to-all, or with prefill coordination, verifies "
        "in "
        "static mode only",
        fix="remove SGLANG_RAGGED_VERIFY_MODE",
        source=_SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
    ),
    Rule(
        id="dspark-dp-context-parallel",
        when=_DP & (ATTN_CP_SIZE > 1),
        sides=(_ALGORITHM, ATTN_DP_SIZE, ATTN_CP_SIZE),
        says="DSpark cannot have attention data parallelism and context parallelism at once",
        fix="set attn-cp-size or attn-dp-size to 1",
        source=_SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
    ),
    Rule(
        id="dspark-dp-draft-experts",
        when=every(
            _DP,
            written("speculative-moe-a2a-backend").given,
            ~(written("speculative-moe-a2a-backend") == A2A_BACKEND),
        ),
        sides=(written("speculative-moe-a2a-backend"), A2A_BACKEND),
        says="DSpark drafts with the all-to-all back end of the model, {backend}, and takes no other",
        fix="remove speculative-moe-a2a-backend",
        source=_SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
        shows={"backend": A2A_BACKEND},
    ),
    Rule(
        id="speculation-prefill-coordination",
        when=_COORDINATES & (~IS_DSPARK | flag("enable-multi-layer-eagle")),
        sides=(env("SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION"), _ALGORITHM, written("enable-multi-layer-eagle")),
        says="coordinated prefill exists for DSPARK, without enable-multi-layer-eagle",
        fix="remove SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION, or set speculative-algorithm to DSPARK",
        source=_SOURCE,
        decided_by=_HANDLE,
        roles=ROLES,
    ),
)

_DRAFTS: Final = (
    Rule(
        id="dspark-pipeline-parallel",
        when=every(IS_DSPARK, ~(PP_SIZE == 1), ~IS_PREFILL),
        sides=(_ALGORITHM, PP_SIZE, MODE),
        says="DSpark decodes without pipeline parallelism",
        fix="set pp-size to 1",
        source=_SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
    ),
    Rule(
        id="dspark-draft-missing",
        when=every(IS_DSPARK, ~DRAFT_BLOCK.given, ~_DRAFT.given),
        sides=(_ALGORITHM, _DRAFT, DRAFT_BLOCK),
        says="DSpark needs a draft, and this checkpoint bundles none",
        fix="set speculative-draft-model-path to a DSpark draft of this model",
        source=_SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
    ),
    Rule(
        id="dspark-block-size",
        when=IS_DSPARK & (DSPARK_BLOCK < 1),
        sides=(DSPARK_BLOCK,),
        says="DSpark drafts at least one token at a time, and gets {block}",
        fix="set speculative-dspark-block-size to a positive number or leave it out",
        source=_SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
        shows={"block": DSPARK_BLOCK},
    ),
    Rule(
        id="dspark-draft-tokens",
        when=every(IS_DSPARK, _TOKENS.given, ~(_TOKENS == DSPARK_BLOCK + 1), DSPARK_BLOCK.given | (_TOKENS < 2)),
        sides=(_TOKENS, DSPARK_BLOCK),
        says="DSpark verifies its block and the token before it, {tokens} tokens here",
        fix="remove speculative-num-draft-tokens; speculative-dspark-block-size alone sets it",
        source=_SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
        shows={"tokens": (DSPARK_BLOCK + 1).otherwise(2)},
    ),
    Rule(
        id="speculation-block-verification",
        when=flag("speculative-use-block-verification") & ~IS_DSPARK,
        sides=(written("speculative-use-block-verification"), _ALGORITHM),
        says="block verification verifies drafts, and nothing drafts here",
        fix="set speculative-algorithm to DSPARK, or remove speculative-use-block-verification",
        source=_SOURCE,
        decided_by=_HANDLE,
        roles=ROLES,
    ),
    Rule(
        id="speculation-draft-window",
        when=flag("speculative-draft-window-size") < 1,
        sides=(written("speculative-draft-window-size"),),
        says="a draft sees a window of at least one token",
        fix="set speculative-draft-window-size to a positive number or leave it out",
        source=_SOURCE,
        decided_by=_HANDLE,
        roles=ROLES,
    ),
    Rule(
        id="speculation-draft-sink",
        when=some(
            flag("speculative-draft-sink-size") < 0,
            written("speculative-draft-sink-size").given & ~written("speculative-draft-window-size").given,
        ),
        sides=(written("speculative-draft-sink-size"), written("speculative-draft-window-size")),
        says="attention sinks of the draft are not negative, and go with a draft window",
        fix="set speculative-draft-window-size, or remove speculative-draft-sink-size",
        source=_SOURCE,
        decided_by=_HANDLE,
        roles=ROLES,
    ),
)

RULES: Final = (*_KINDS, *_DISAGGREGATED, *_DATA_PARALLEL, *_DRAFTS)
RESOLVED: Final = (SPECULATIVE_ALGORITHM, SPECULATIVE_NUM_DRAFT_TOKENS, SPECULATIVE_NUM_STEPS)

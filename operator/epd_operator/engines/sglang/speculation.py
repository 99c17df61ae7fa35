"""Speculative decoding: DSpark, the only kind that DeepSeek-V4.1 has, and what it cannot be combined with."""

from __future__ import annotations

from typing import Final

from epd_operator.engines.expression import every, named, some, when
from epd_operator.engines.rule import ROLES, Rule
from epd_operator.engines.sglang.attention import SPECULATES
from epd_operator.engines.sglang.base import DRAFT_BLOCK, IS_DECODE, IS_PD, IS_PREFILL, IS_V41, MODE
from epd_operator.engines.sglang.disaggregation import TRANSFER_BACKEND
from epd_operator.engines.sglang.given import env, flag, written
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
        "speculation-kind",
        SPECULATES & ~_ALGORITHM.isin(("EAGLE", "DSPARK")),
        (_ALGORITHM,),
        "DeepSeek-V4.1 speculates with DSPARK, written so, not with {kind}",
        "set speculative-algorithm to DSPARK or leave it out",
        _V4,
        decided_by=_DEFAULTS,
        roles=ROLES,
        stated=_READ,
        shows={"kind": _ALGORITHM},
    ),
    Rule(
        "speculation-eagle-topk",
        _IS_EAGLE & ~(flag("speculative-eagle-topk") == 1),
        (_ALGORITHM,),
        "DeepSeek-V4.1 drafts with DSPARK only, and EAGLE is not for it",
        "set speculative-algorithm to DSPARK or leave it out",
        _V4,
        decided_by=_DEFAULTS,
        roles=ROLES,
    ),
    Rule(
        "speculation-eagle",
        every(IS_V41, _IS_EAGLE, flag("speculative-eagle-topk") == 1),
        (_ALGORITHM,),
        "DeepSeek-V4.1 has no EAGLE: it speculates with DSPARK only",
        "set speculative-algorithm to DSPARK or leave it out",
        _V4,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        "speculation-verify-mode",
        every(
            SPECULATES | flag("enable-linear-replayssm-spec"),
            _VERIFY.given,
            ~_VERIFY.isin(("static", "cap-accept", "compact")),
        ),
        (_VERIFY,),
        "verification is static, cap-accept or compact, not {mode}",
        "set SGLANG_RAGGED_VERIFY_MODE to one of them, or remove it",
        "SGLang 0.5.23, speculative/ragged_verify.py",
        decided_by="ragged_verify.read_ragged_verify_mode",
        roles=ROLES,
        shows={"mode": _VERIFY},
    ),
)

_DISAGGREGATED: Final = (
    Rule(
        "dspark-disaggregation-verify",
        _PD & _IS_RAGGED,
        (_ALGORITHM, MODE, _VERIFY),
        "DSpark across prefill and decode pods verifies in static mode only",
        "remove SGLANG_RAGGED_VERIFY_MODE",
        _V4,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        "dspark-disaggregation-transfer",
        _PD & ~_TRANSFERS,
        (_ALGORITHM, TRANSFER_BACKEND),
        "DSpark moves its draft KV between pods with {backends} only",
        "set the transfer backend to {backends}, or remove speculative-algorithm on both roles",
        _V4,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
        shows={"backends": since(_RELEASE, "mooncake or nixl", "mooncake")},
    ),
    Rule(
        "dspark-disaggregation-context-parallel",
        every(_PD, PREFILL_CP | ~(ATTN_CP_SIZE_ASKED == 1), ~_PREFILL_CP_WORKS),
        (_ALGORITHM, MODE, PREFILL_CP, ATTN_CP_SIZE_ASKED),
        "DSpark across pods has context parallelism in one form only, prefill CP with the strategy interleave "
        "on prefill pods",
        "remove attn-cp-size; on prefill, set enable-prefill-cp with cp-strategy interleave; on decode, remove both",
        _V4,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        "dspark-disaggregation-dcp",
        _PD & ~(DCP_SIZE == 1),
        (_ALGORITHM, MODE, DCP_SIZE),
        "DSpark across pods has no decode context parallelism",
        "set dcp-size to 1, or remove speculative-algorithm on both roles",
        _V4,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        "speculation-decode-radix-cache",
        every(SPECULATES, IS_DECODE, flag("disaggregation-decode-enable-radix-cache")),
        (_ALGORITHM, written("disaggregation-decode-enable-radix-cache")),
        "a decode pod of this version cannot keep a radix cache while it speculates",
        "remove disaggregation-decode-enable-radix-cache or speculative-algorithm",
        "SGLang commit 006cbb66, srt/arg_groups/speculative_hook.py",
        decided_by=_HANDLE,
        roles=ROLES,
        until=_RELEASE,
        stated=("dsv41-2026-09",),
    ),
)

_DATA_PARALLEL: Final = (
    Rule(
        "dspark-dp-lm-head",
        _DP & ~ENABLE_DP_LM_HEAD,
        (_ALGORITHM, ATTN_DP_SIZE, written("enable-dp-lm-head")),
        "DSpark with attention data parallelism needs a data-parallel LM head",
        "set enable-dp-lm-head to true",
        _SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
    ),
    Rule(
        "dspark-dp-experts",
        _DP & ~A2A_BACKEND.isin(("none", "megamoe", "mori")),
        (_ALGORITHM, ATTN_DP_SIZE, A2A_BACKEND),
        "DSpark with attention data parallelism works with the all-to-all back ends none, megamoe and mori, "
        "not {backend}",
        "set moe-a2a-backend to none or megamoe, or attn-dp-size to 1",
        _SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
        shows={"backend": A2A_BACKEND},
    ),
    Rule(
        "dspark-dp-verify",
        every(_DP, ~(A2A_BACKEND == "none") | _COORDINATES, _IS_RAGGED),
        (_ALGORITHM, ATTN_DP_SIZE, A2A_BACKEND, _VERIFY),
        "DSpark with attention data parallelism and an expert all-to-all, or with prefill coordination, verifies in "
        "static mode only",
        "remove SGLANG_RAGGED_VERIFY_MODE",
        _SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
    ),
    Rule(
        "dspark-dp-context-parallel",
        _DP & (ATTN_CP_SIZE > 1),
        (_ALGORITHM, ATTN_DP_SIZE, ATTN_CP_SIZE),
        "DSpark cannot have attention data parallelism and context parallelism at once",
        "set attn-cp-size or attn-dp-size to 1",
        _SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
    ),
    Rule(
        "dspark-dp-draft-experts",
        every(
            _DP,
            written("speculative-moe-a2a-backend").given,
            ~(written("speculative-moe-a2a-backend") == A2A_BACKEND),
        ),
        (written("speculative-moe-a2a-backend"), A2A_BACKEND),
        "DSpark drafts with the all-to-all back end of the model, {backend}, and takes no other",
        "remove speculative-moe-a2a-backend",
        _SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
        shows={"backend": A2A_BACKEND},
    ),
    Rule(
        "speculation-prefill-coordination",
        _COORDINATES & (~IS_DSPARK | flag("enable-multi-layer-eagle")),
        (env("SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION"), _ALGORITHM, written("enable-multi-layer-eagle")),
        "coordinated prefill exists for DSPARK, without enable-multi-layer-eagle",
        "remove SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION, or set speculative-algorithm to DSPARK",
        _SOURCE,
        decided_by=_HANDLE,
        roles=ROLES,
    ),
)

_DRAFTS: Final = (
    Rule(
        "dspark-pipeline-parallel",
        every(IS_DSPARK, ~(PP_SIZE == 1), ~IS_PREFILL),
        (_ALGORITHM, PP_SIZE, MODE),
        "DSpark decodes without pipeline parallelism",
        "set pp-size to 1",
        _SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
    ),
    Rule(
        "dspark-draft-missing",
        every(IS_DSPARK, ~DRAFT_BLOCK.given, ~_DRAFT.given),
        (_ALGORITHM, _DRAFT, DRAFT_BLOCK),
        "DSpark needs a draft, and this checkpoint bundles none",
        "set speculative-draft-model-path to a DSpark draft of this model",
        _SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
    ),
    Rule(
        "dspark-block-size",
        IS_DSPARK & (DSPARK_BLOCK < 1),
        (DSPARK_BLOCK,),
        "DSpark drafts at least one token at a time, and gets {block}",
        "set speculative-dspark-block-size to a positive number or leave it out",
        _SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
        shows={"block": DSPARK_BLOCK},
    ),
    Rule(
        "dspark-draft-tokens",
        every(IS_DSPARK, _TOKENS.given, ~(_TOKENS == DSPARK_BLOCK + 1), DSPARK_BLOCK.given | (_TOKENS < 2)),
        (_TOKENS, DSPARK_BLOCK),
        "DSpark verifies its block and the token before it, {tokens} tokens here",
        "remove speculative-num-draft-tokens; speculative-dspark-block-size alone says it",
        _SOURCE,
        decided_by=_DSPARK,
        roles=ROLES,
        shows={"tokens": (DSPARK_BLOCK + 1).otherwise(2)},
    ),
    Rule(
        "speculation-block-verification",
        flag("speculative-use-block-verification") & ~IS_DSPARK,
        (written("speculative-use-block-verification"), _ALGORITHM),
        "block verification verifies drafts, and nothing drafts here",
        "set speculative-algorithm to DSPARK, or remove speculative-use-block-verification",
        _SOURCE,
        decided_by=_HANDLE,
        roles=ROLES,
    ),
    Rule(
        "speculation-draft-window",
        flag("speculative-draft-window-size") < 1,
        (written("speculative-draft-window-size"),),
        "a draft sees a window of at least one token",
        "set speculative-draft-window-size to a positive number or leave it out",
        _SOURCE,
        decided_by=_HANDLE,
        roles=ROLES,
    ),
    Rule(
        "speculation-draft-sink",
        some(
            flag("speculative-draft-sink-size") < 0,
            written("speculative-draft-sink-size").given & ~written("speculative-draft-window-size").given,
        ),
        (written("speculative-draft-sink-size"), written("speculative-draft-window-size")),
        "attention sinks of the draft are not negative, and go with a draft window",
        "set speculative-draft-window-size, or remove speculative-draft-sink-size",
        _SOURCE,
        decided_by=_HANDLE,
        roles=ROLES,
    ),
)

RULES: Final = (*_KINDS, *_DISAGGREGATED, *_DATA_PARALLEL, *_DRAFTS)
RESOLVED: Final = (SPECULATIVE_ALGORITHM, SPECULATIVE_NUM_DRAFT_TOKENS, SPECULATIVE_NUM_STEPS)

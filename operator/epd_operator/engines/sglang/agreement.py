"""What a prefill and a decode server must agree on before they exchange pages.

The engine finds out at the first contact, and then the decode server dies. Everything is compared as the engine
resolves it, so that leaving a value out on one side hides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines.sglang.attention import (
    DSV4_ATTN_BACKEND,
    KV_CACHE_DTYPE,
    KV_LAYOUT,
    KV_LAYOUT_WORKS,
    PAGE_SIZE,
)
from epd_operator.engines.sglang.base import DRAFT_BLOCK
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.model import CONTEXT_LENGTH
from epd_operator.engines.sglang.moe import QUANTIZATION
from epd_operator.engines.sglang.parallel import ATTN_CP_SIZE, ATTN_DP_SIZE, ATTN_TP_SIZE, PP_SIZE
from epd_operator.engines.sglang.release import since
from epd_operator.engines.shared import differ
from epd_operator.rules.expression import at, every, lower, named, number, when
from epd_operator.rules.rule import Rule

if TYPE_CHECKING:
    from epd_operator.rules.expression import Expr

_HANDSHAKE: Final = "SGLang 0.5.23, disaggregation/common/conn.py (read, not run)"
_DIES: Final = "the decode server dies at its first contact with a prefill server that differs"

_LAYOUT: Final = env("SGLANG_DSV4_KV_LAYOUT")
_ASKED: Final = lower(_LAYOUT)
_COMPRESSED: Final = env("SGLANG_DSV4_COMPRESSED_KV_LAYOUT")
COMPRESSED_LAYOUT: Final = named("compressed_kv_layout_variable", lower(_COMPRESSED).otherwise("auto"), _COMPRESSED)

DRAFT: Final = named(
    "draft", when(flag("speculative-algorithm") == "DSPARK", "DSPARK", "none"), written("speculative-algorithm")
)
DRAFT_SIZE: Final = named(
    "draft_block_size",
    flag("speculative-dspark-block-size").otherwise(DRAFT_BLOCK),
    written("speculative-dspark-block-size"),
)
_DRAFT_PATH: Final = written("speculative-draft-model-path")
DRAFT_MODEL: Final = named("speculative_draft_model_path", _DRAFT_PATH.otherwise(flag("model-path")), _DRAFT_PATH)
"""Where the draft comes from: the checkpoint bundles one. Source: SGLang 0.5.23, arg_groups/speculative_hook.py."""
DRAFT_REVISION: Final = named(
    "speculative_draft_model_revision",
    when(_DRAFT_PATH.given, flag("speculative-draft-model-revision"), flag("revision")),
    written("speculative-draft-model-revision"),
)
_ALGORITHM: Final = written("speculative-algorithm")
_ALGORITHMS_KNOWN: Final = every(
    *(~at(role, _ALGORITHM).given | (at(role, _ALGORITHM) == "DSPARK") for role in ("prefill", "decode"))
)
"""What else stands there is refused by itself."""
_BOTH_DRAFT: Final = (at("prefill", DRAFT) == "DSPARK") & (at("decode", DRAFT) == "DSPARK")
ATTENTION_TP_WITH_CP: Final = named(
    "attention_tp_with_cp", since("0.5.23", ATTN_TP_SIZE * ATTN_CP_SIZE, ATTN_TP_SIZE), written("tp-size")
)


def _pair(rule_id: str, subject: Expr, what: str, fix: str, when_: Expr | None = None) -> Rule:
    return Rule(
        id=rule_id,
        when=differ(subject) if when_ is None else when_,
        sides=(at("prefill", subject), at("decode", subject)),
        says=f"prefill and decode must have the same {what}: {_DIES}",
        fix=fix,
        source=_HANDSHAKE,
        roles=(),
    )


_HANDSHAKES: Final = (
    _pair("pair-page-size", PAGE_SIZE, "page size", "set page-size alike, or leave it out on both"),
    _pair("pair-kv-cache-dtype", KV_CACHE_DTYPE, "KV cache dtype", "set kv-cache-dtype alike, or leave it out on both"),
    _pair(
        "pair-attention-backend",
        DSV4_ATTN_BACKEND,
        "dsv4 attention back end, which decides the KV layout",
        "set dsv4-attn-backend alike on both; left out, it depends on the GPU generation",
        every(
            differ(KV_LAYOUT),
            differ(flag("dsv4-attn-backend")) | ~(differ(KV_CACHE_DTYPE) | differ(_ASKED)),
        ),
    ),
    _pair(
        "pair-kv-layout",
        KV_LAYOUT,
        "KV layout",
        "set SGLANG_DSV4_KV_LAYOUT alike on both, or on neither",
        every(differ(KV_LAYOUT), differ(_ASKED), at("prefill", KV_LAYOUT_WORKS), at("decode", KV_LAYOUT_WORKS)),
    ),
    _pair(
        "pair-compressed-kv-layout",
        COMPRESSED_LAYOUT,
        "layout of compressed KV",
        "set SGLANG_DSV4_COMPRESSED_KV_LAYOUT alike on both, or on neither",
    ),
    _pair(
        "pair-speculation",
        DRAFT,
        "speculation",
        "set speculative-algorithm: DSPARK on both, or on neither",
        every(differ(DRAFT), _ALGORITHMS_KNOWN),
    ),
    _pair(
        "pair-draft-block",
        DRAFT_SIZE,
        "draft block size",
        "set speculative-dspark-block-size alike, or leave it out on both",
        every(_BOTH_DRAFT, differ(DRAFT_SIZE)),
    ),
    Rule(
        id="pair-attention-tp",
        when=every(
            _BOTH_DRAFT,
            ~(at("prefill", ATTN_TP_SIZE) == at("decode", ATTN_TP_SIZE)),
            ~(at("prefill", ATTENTION_TP_WITH_CP) == at("decode", ATTN_TP_SIZE)),
        ),
        sides=(at("prefill", ATTN_TP_SIZE), at("decode", ATTN_TP_SIZE)),
        says=f"with DSpark prefill and decode must have the same attention TP: {_DIES}",
        fix="choose tp-size and attn-dp-size so that both give the same attention TP; from 0.5.23 on prefill's "
        "attention TP times CP may stand for it",
        source=f"{_HANDSHAKE}; sgl-project/sglang#38949",
        roles=(),
        decided_by="conn.try_ensure_parallel_info",
    ),
    Rule(
        id="pair-attention-tp-divides",
        when=every(
            ~_BOTH_DRAFT,
            ~(at("prefill", ATTN_TP_SIZE) % at("decode", ATTN_TP_SIZE) == 0),
            ~(at("decode", ATTN_TP_SIZE) % at("prefill", ATTN_TP_SIZE) == 0),
        ),
        sides=(at("prefill", ATTN_TP_SIZE), at("decode", ATTN_TP_SIZE)),
        says="ranks of prefill and decode are matched by division, and neither attention TP divides the other",
        fix="choose tp-size and attn-dp-size so that one attention TP is a multiple of the other",
        source="SGLang 0.5.23, disaggregation/common/conn.py (inferred)",
        severity="warning",
        roles=(),
    ),
    Rule(
        id="pair-decode-cp",
        when=at("decode", ATTN_CP_SIZE) > 1,
        sides=(at("decode", ATTN_CP_SIZE),),
        says=f"decode does not support attention context parallelism under PD: {_DIES}",
        fix="remove attn-cp-size and enable-prefill-cp from decode",
        source=_HANDSHAKE,
        roles=(),
    ),
    Rule(
        id="pair-pipeline",
        when=every(
            ~(at("decode", PP_SIZE) == at("prefill", PP_SIZE)),
            ~(at("decode", PP_SIZE) == 1),
        ),
        sides=(at("prefill", PP_SIZE), at("decode", PP_SIZE)),
        says=f"decode's pipeline size must be prefill's, or 1: {_DIES}",
        fix="set pp-size alike, or 1 on decode",
        source=_HANDSHAKE,
        roles=(),
    ),
    Rule(
        id="pair-allocation-policy",
        when=differ(flag("disaggregation-decode-allocation-policy")),
        sides=tuple(at(role, written("disaggregation-decode-allocation-policy")) for role in ("prefill", "decode")),
        says="prefill and decode must have the same allocation policy: every request between them fails",
        fix="set disaggregation-decode-allocation-policy alike, or leave it out on both",
        source=_HANDSHAKE,
        roles=(),
    ),
)

_SILENT: Final = "nothing checks it, and answers would be wrong without an error"
_TOKENS: Final = ("tokenizer-path", "chat-template", "trust-remote-code", "json-model-override-args")


def _silently(name: str) -> Rule:
    subject = written(name)
    return Rule(
        id=f"pair-{name}",
        when=differ(flag(name)),
        sides=(at("prefill", subject), at("decode", subject)),
        says=f"prefill and decode read the same request, so {name} must be alike: {_SILENT}",
        fix=f"set {name} alike, or leave it out on both",
        source="SGLang 0.5.23, disaggregation/common/conn.py: not part of the handshake",
        severity="warning",
        roles=(),
    )


_WEIGHTS: Final = named("quantization_of_weights", QUANTIZATION.otherwise("fp8"), written("quantization"))
_RANDOM: Final = flag("load-format") == "dummy"
_TIMEOUT_SECONDS: Final = 300
_BOOTSTRAP_TIMEOUT: Final = env("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT")
_WAITING_TIMEOUT: Final = env("SGLANG_DISAGGREGATION_WAITING_TIMEOUT")
PREFILL_TIMEOUT: Final = named(
    "sglang_disaggregation_bootstrap_timeout",
    number(_BOOTSTRAP_TIMEOUT).otherwise(_TIMEOUT_SECONDS),
    _BOOTSTRAP_TIMEOUT,
)
DECODE_TIMEOUT: Final = named(
    "sglang_disaggregation_waiting_timeout", number(_WAITING_TIMEOUT).otherwise(_TIMEOUT_SECONDS), _WAITING_TIMEOUT
)
"""Seconds that each waits for the other; neither reads the other's variable. Source: disaggregation/common/conn.py."""
_TEXT_ONLY: Final = named("language_model_only_given", flag("language-model-only"), written("language-model-only"))

_ADVICE: Final = (
    *(_silently(name) for name in _TOKENS),
    Rule(
        id="pair-load-format",
        when=differ(_RANDOM),
        sides=tuple(at(role, written("load-format")) for role in ("prefill", "decode")),
        says=f"one of prefill and decode makes up its weights instead of loading them: {_SILENT}",
        fix="set load-format: dummy on both to measure, or on neither to serve",
        source="SGLang 0.5.23, disaggregation/common/conn.py: not part of the handshake",
        severity="warning",
        roles=(),
    ),
    Rule(
        id="pair-quantization",
        when=differ(_WEIGHTS),
        sides=(at("prefill", _WEIGHTS), at("decode", _WEIGHTS)),
        says=f"prefill and decode would compute with weights of two kinds: {_SILENT}",
        fix="set quantization alike, or leave it out on both",
        source="SGLang 0.5.23, disaggregation/common/conn.py: not part of the handshake",
        severity="warning",
        roles=(),
    ),
    Rule(
        id="pair-draft-model",
        when=every(_BOTH_DRAFT, differ(DRAFT_MODEL)),
        sides=(at("prefill", DRAFT_MODEL), at("decode", DRAFT_MODEL)),
        says="prefill hands over what another draft computed than the one that decode goes on with: nothing checks "
        "it, and drafts would be wrong, which costs speed without an error",
        fix="set speculative-draft-model-path alike, or leave it out on both",
        source="SGLang 0.5.23, disaggregation/common/conn.py: not part of the handshake",
        severity="warning",
        roles=(),
    ),
    Rule(
        id="pair-context-length",
        when=differ(CONTEXT_LENGTH),
        sides=(at("prefill", CONTEXT_LENGTH), at("decode", CONTEXT_LENGTH)),
        says="the smaller limit is the one that clients get",
        fix="set context-length alike, or leave it out on both",
        source="sgl-project/sglang#23380",
        severity="warning",
        roles=(),
    ),
    Rule(
        id="pair-transfer-timeout",
        when=~(at("prefill", PREFILL_TIMEOUT) == at("decode", DECODE_TIMEOUT)),
        sides=(at("prefill", PREFILL_TIMEOUT), at("decode", DECODE_TIMEOUT)),
        says="prefill and decode wait for each other, and the shorter timeout wins",
        fix="set SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT on prefill and SGLANG_DISAGGREGATION_WAITING_TIMEOUT on "
        "decode to the same seconds; each role reads only its own",
        source="sgl-project/sglang#10204, sgl-project/sglang#11648",
        severity="warning",
        roles=(),
    ),
    Rule(
        id="pair-language-model-only",
        when=differ(_TEXT_ONLY),
        sides=(at("prefill", _TEXT_ONLY), at("decode", _TEXT_ONLY)),
        says="both servers get every image of a request, and the one without a vision tower answers it with 400",
        fix="set language-model-only on both for text only, or on neither",
        source="SGLang 0.5.23, managers/tokenizer_manager.py; arg_groups/model_hook.py (read)",
        severity="warning",
        roles=(),
    ),
    Rule(
        id="retraction-prefill-rank",
        when=every(
            at("prefill", ATTN_DP_SIZE) > 1,
            at("prefill", flag("load-balance-method")).isin(("total_tokens", "total_requests")),
        ),
        sides=(at("prefill", written("load-balance-method")), at("prefill", ATTN_DP_SIZE)),
        says="a request that decode hands back for want of memory can return to another prefill rank than before",
        fix="leave load-balance-method out on prefill, which then follows the bootstrap room",
        source="sgl-project/sglang#40730, sgl-project/sglang#36185",
        severity="warning",
        roles=(),
    ),
)

RULES: Final = (*_HANDSHAKES, *_ADVICE)
RESOLVED: Final = (DRAFT,)

"""What one step may carry: tokens of a chunk or a batch against what the exchange of experts has room for.

A rank sets its buffers aside at start. The engine compares them with the longest prefill chunk and with the largest
batch of a decode graph, because a step that outgrows them stops the server under load.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from epd_operator.engines.sglang.attention import SPECULATES
from epd_operator.engines.sglang.base import IS_CUDA, IS_DECODE, IS_ENCODER, IS_HIP, IS_PREFILL
from epd_operator.engines.sglang.capture import DECODE_MAX_BS, PREFILL_MAX_BS
from epd_operator.engines.sglang.chunk import (
    CHUNK_SIZE,
    MAX_PREFILL_TOKENS,
    MAX_RUNNING_REQUESTS,
    least,
    most,
)
from epd_operator.engines.sglang.flags import env, written
from epd_operator.engines.sglang.graph import CUDA_GRAPH_DECODE, CUDA_GRAPH_PREFILL
from epd_operator.engines.sglang.moe import A2A_BACKEND
from epd_operator.engines.sglang.parallel import (
    ATTN_CP_SIZE,
    ATTN_DP_ENABLED,
    ATTN_DP_SIZE,
    PREFILL_CP,
    TP_SIZE,
)
from epd_operator.engines.sglang.speculation import SPECULATIVE_NUM_DRAFT_TOKENS
from epd_operator.engines.sglang.switch import switch
from epd_operator.rules.expression import Expr, every, lift, named, number, some, when
from epd_operator.rules.rule import ROLES, Rule

_MOE: Final = "SGLang 0.5.23, srt/arg_groups/moe_hook.py"
_MEGA: Final = "SGLang 0.5.23, srt/arg_groups/mega_moe_hook.py"


def _buffer(name: str, default: int) -> Expr:
    return named(name.lower(), number(env(name)).otherwise(default), env(name))


TOKENS_PER_REQUEST: Final = named(
    "decode_tokens_per_request",
    when(SPECULATES, SPECULATIVE_NUM_DRAFT_TOKENS.otherwise(1), 1),
    written("speculative-dspark-block-size"),
    written("speculative-algorithm"),
)
"""Rows that one request adds to a decode step: with a draft, every drafted token and one more."""


_IS_MEGA: Final = every(A2A_BACKEND == "megamoe", ~IS_ENCODER)
_GROUP: Final = TP_SIZE // ATTN_DP_SIZE


def _align(amount: Expr, unit: Expr) -> Expr:
    """The least multiple of a unit that is at least the amount."""
    return (amount + unit - 1) // unit * unit


MEGA_DECODE_TOKENS: Final = named(
    "megamoe_decode_tokens",
    least(DECODE_MAX_BS, _align(MAX_RUNNING_REQUESTS // ATTN_DP_SIZE, _GROUP)) * TOKENS_PER_REQUEST,
    written("cuda-graph-max-bs-decode"),
    written("max-running-requests"),
)
_CHUNK_SHARE: Final = when(
    PREFILL_CP,
    (CHUNK_SIZE + ATTN_CP_SIZE - 1) // ATTN_CP_SIZE,
    # The chunk was divided by attention data parallelism before; the engine divides once more here.
    when(ATTN_DP_ENABLED, CHUNK_SIZE // ATTN_DP_SIZE, CHUNK_SIZE),
)
_SHARE_UNIT: Final = when(
    PREFILL_CP, 1, most(when(ATTN_DP_ENABLED, _GROUP // ATTN_CP_SIZE, TP_SIZE // ATTN_CP_SIZE), lift(1))
)
MEGA_PREFILL_TOKENS: Final = named(
    "megamoe_prefill_tokens", _align(_CHUNK_SHARE, _SHARE_UNIT), written("chunked-prefill-size")
)
_MEGA_ROOM: Final = _buffer("SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK", 8192)
_IN_MEGA: Final = "mega_moe_hook.validate_mega_moe_token_budget"

_FLYDSL_WHOLE: Final = _buffer("SGLANG_AMD_FLYDSL_MEGA_MOE_MTPR", 8192)
_FLYDSL_DECODE: Final = _buffer("SGLANG_AMD_FLYDSL_MEGA_MOE_DECODE_MTPR", 0)
_FLYDSL_TOKENS: Final = named(
    "flydsl_decode_tokens",
    when(ATTN_DP_ENABLED, MAX_RUNNING_REQUESTS // ATTN_DP_SIZE, MAX_RUNNING_REQUESTS) * TOKENS_PER_REQUEST,
    written("max-running-requests"),
)
_IS_FLYDSL: Final = every(
    _IS_MEGA,
    IS_HIP,
    switch("SGLANG_AMD_USE_FLYDSL_MEGA_MOE"),
    ~IS_PREFILL,
    _FLYDSL_DECODE > 0,
    _FLYDSL_DECODE < _FLYDSL_WHOLE,
)

_MEGAMOE: Final = (
    Rule(
        id="megamoe-chunking",
        when=every(_IS_MEGA, IS_CUDA, ~IS_DECODE, some(CHUNK_SIZE <= 0, _CHUNK_SHARE <= 0, ATTN_CP_SIZE == 0)),
        sides=(A2A_BACKEND, CHUNK_SIZE, ATTN_CP_SIZE),
        says="MegaMoE reserves room for a rank's share of one prefill chunk, and there is no chunk, or no rank to "
        "share it",
        fix="set chunked-prefill-size to at least attn-dp-size pages, and attn-cp-size to 1 or more",
        source=f"{_MEGA}, validate_mega_moe_token_budget",
        decided_by=_IN_MEGA,
    ),
    Rule(
        id="megamoe-prefill-room",
        when=every(_IS_MEGA, IS_CUDA, ~IS_DECODE, MEGA_PREFILL_TOKENS > _MEGA_ROOM),
        sides=(A2A_BACKEND, MEGA_PREFILL_TOKENS, _MEGA_ROOM),
        says="a prefill step needs room for {needed} tokens a rank, and MegaMoE reserves {room}",
        fix="set SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK to {needed} or more, or lower "
        "chunked-prefill-size",
        source=f"{_MEGA}, validate_mega_moe_token_budget",
        decided_by=_IN_MEGA,
        shows={"needed": MEGA_PREFILL_TOKENS, "room": _MEGA_ROOM},
    ),
    Rule(
        id="megamoe-decode-room",
        when=every(_IS_MEGA, IS_CUDA, ~IS_PREFILL, MEGA_DECODE_TOKENS > _MEGA_ROOM),
        sides=(A2A_BACKEND, MEGA_DECODE_TOKENS, _MEGA_ROOM),
        says="the largest decode step needs room for {needed} tokens a rank, and MegaMoE reserves {room}",
        fix="set SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK to {needed} or more, or lower "
        "cuda-graph-max-bs-decode or max-running-requests",
        source=f"{_MEGA}, validate_mega_moe_token_budget",
        decided_by=_IN_MEGA,
        shows={"needed": MEGA_DECODE_TOKENS, "room": _MEGA_ROOM},
    ),
    Rule(
        id="megamoe-ranks",
        when=every(_IS_MEGA, IS_CUDA, ~IS_PREFILL, _GROUP == 0),
        sides=(A2A_BACKEND, TP_SIZE, ATTN_DP_SIZE),
        says="an attention group without ranks decodes nothing",
        fix="set tp-size to 1 or more, and attn-dp-size to a divisor of it",
        source=f"{_MEGA}, mega_moe_decode_tokens_per_rank (it divides by the ranks of a group)",
        decided_by="common.ceil_div",
    ),
    Rule(
        id="megamoe-rocm-decode-room",
        when=every(_IS_FLYDSL, some(ATTN_CP_SIZE > 1, _FLYDSL_TOKENS > _FLYDSL_DECODE)),
        sides=(_FLYDSL_DECODE, _FLYDSL_TOKENS, ATTN_CP_SIZE),
        says="the separate room for decode steps, {room} tokens a rank, must hold {needed} and does not work with "
        "attention context parallelism",
        fix="unset SGLANG_AMD_FLYDSL_MEGA_MOE_DECODE_MTPR, or lower max-running-requests",
        source=f"{_MEGA}, validate_flydsl_decode_capacity",
        decided_by="mega_moe_hook.validate_flydsl_decode_capacity",
        shows={"needed": _FLYDSL_TOKENS, "room": _FLYDSL_DECODE},
    ),
)

_PREFILL_TOKENS: Final = when(CHUNK_SIZE > 0, CHUNK_SIZE, 0)
_NO_DECODE_GRAPH: Final = IS_PREFILL | (CUDA_GRAPH_DECODE == "disabled")
GRAPH_TOKENS: Final = named(
    "decode_graph_tokens",
    when(
        _NO_DECODE_GRAPH,
        0,
        least(DECODE_MAX_BS, most(lift(1), MAX_RUNNING_REQUESTS // ATTN_DP_SIZE)) * TOKENS_PER_REQUEST,
    ),
    written("cuda-graph-max-bs-decode"),
    written("max-running-requests"),
)
"""Tokens of the largest decode graph on one rank; 0 where none is captured."""

_FLASHINFER_TOKENS: Final = named(
    "flashinfer_tokens",
    most(
        when(
            IS_DECODE,
            0,
            when(CUDA_GRAPH_PREFILL == "disabled", _PREFILL_TOKENS, most(_PREFILL_TOKENS, PREFILL_MAX_BS)),
        ),
        GRAPH_TOKENS,
    ),
    written("chunked-prefill-size"),
    written("cuda-graph-max-bs-prefill"),
)
_FLASHINFER_NAME: Final = "SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
_FLASHINFER_ROOM: Final = named(
    _FLASHINFER_NAME.lower(),
    number(env(_FLASHINFER_NAME)).otherwise(most(_PREFILL_TOKENS, lift(4096))),
    env(_FLASHINFER_NAME),
)
_IS_FLASHINFER: Final = A2A_BACKEND == "flashinfer"
_IN_FLASHINFER: Final = "moe_hook.validate_flashinfer_a2a_token_budget"

_IS_V2: Final = A2A_BACKEND == "deepep_v2"
_V2_ROOM: Final = _buffer("SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 128)
_V2_CEILING: Final = when(CHUNK_SIZE > 0, CHUNK_SIZE, MAX_PREFILL_TOKENS)
_V2_RANKS: Final = most(lift(1), _GROUP)
_V2_TOKENS: Final = named(
    "deepep_v2_tokens",
    most(when(IS_DECODE, 0, (_V2_CEILING + _V2_RANKS - 1) // _V2_RANKS), GRAPH_TOKENS),
    written("chunked-prefill-size"),
    written("max-running-requests"),
)
_DRAFT_EXCHANGE: Final = written("speculative-moe-a2a-backend")

_PPLX_GRAPH: Final = written("cuda-graph-max-bs-decode")
_PPLX_TOKENS: Final = named(
    "pplx_tokens",
    when(_PPLX_GRAPH > CHUNK_SIZE, _PPLX_GRAPH, CHUNK_SIZE),
    written("chunked-prefill-size"),
    _PPLX_GRAPH,
)
_MORI_ROOM: Final = _buffer("SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 4096)
_PPLX_ROOM: Final = _buffer("SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 128)
_CHUNKS_PREFILL: Final = every(CHUNK_SIZE > 0, ~IS_DECODE)

_OTHERS: Final = (
    Rule(
        id="mori-room",
        when=every(A2A_BACKEND == "mori", _CHUNKS_PREFILL, CHUNK_SIZE > _MORI_ROOM),
        sides=(A2A_BACKEND, CHUNK_SIZE, _MORI_ROOM),
        says="a prefill step needs room for {needed} tokens a rank, and MoRI reserves {room}",
        fix="set SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK to {needed} or more, or lower chunked-prefill-size",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by="moe_hook.handle_a2a_moe",
        shows={"needed": CHUNK_SIZE, "room": _MORI_ROOM},
    ),
    Rule(
        id="pplx-room",
        when=every(A2A_BACKEND == "pplx", _CHUNKS_PREFILL, _PPLX_TOKENS > _PPLX_ROOM),
        sides=(A2A_BACKEND, _PPLX_TOKENS, _PPLX_ROOM),
        says="a step needs room for {needed} tokens a rank, and pplx reserves {room}",
        fix="set SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK to {needed} or more, or lower chunked-prefill-size",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by="moe_hook.handle_a2a_moe",
        shows={"needed": _PPLX_TOKENS, "room": _PPLX_ROOM},
    ),
    Rule(
        id="flashinfer-chunking",
        when=every(_IS_FLASHINFER, ~IS_DECODE, CHUNK_SIZE <= 0),
        sides=(A2A_BACKEND, CHUNK_SIZE),
        says="the flashinfer exchange reserves room for one prefill chunk, and there is no chunk",
        fix="set chunked-prefill-size above 0",
        source=f"{_MOE}, validate_flashinfer_a2a_token_budget",
        decided_by=_IN_FLASHINFER,
    ),
    Rule(
        id="flashinfer-room",
        when=every(_IS_FLASHINFER, _FLASHINFER_TOKENS > _FLASHINFER_ROOM),
        sides=(A2A_BACKEND, _FLASHINFER_TOKENS, _FLASHINFER_ROOM),
        says="the largest step needs room for {needed} tokens a rank, and the flashinfer exchange reserves {room}",
        fix="set SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK to {needed} or more, or lower chunked-prefill-size "
        "or "
        "the graphs' largest batches",
        source=f"{_MOE}, validate_flashinfer_a2a_token_budget",
        decided_by=_IN_FLASHINFER,
        shows={"needed": _FLASHINFER_TOKENS, "room": _FLASHINFER_ROOM},
    ),
    Rule(
        id="deepep-v2-room",
        when=every(_IS_V2, _V2_TOKENS > _V2_ROOM),
        sides=(A2A_BACKEND, _V2_TOKENS, _V2_ROOM),
        says="the largest step needs room for {needed} tokens a rank, and DeepEP v2 reserves {room}",
        fix="set SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK to {needed} or more, or lower chunked-prefill-size "
        "or "
        "max-running-requests",
        source=f"{_MOE}, validate_deepep_v2_dispatch_token_budget",
        decided_by="moe_hook.validate_deepep_v2_dispatch_token_budget",
        shows={"needed": _V2_TOKENS, "room": _V2_ROOM},
    ),
    Rule(
        id="deepep-v2-draft",
        when=some(_DRAFT_EXCHANGE == "deepep_v2", every(_IS_V2, SPECULATES, ~_DRAFT_EXCHANGE.given)),
        sides=(A2A_BACKEND, _DRAFT_EXCHANGE, written("speculative-algorithm")),
        says="a draft model does not exchange tokens by DeepEP v2",
        fix="set speculative-moe-a2a-backend to none, or choose another moe-a2a-backend",
        source=f"{_MOE}, validate_deepep_v2_speculative_draft",
        decided_by="moe_hook.validate_deepep_v2_speculative_draft",
    ),
)

RULES: Final = (*_MEGAMOE, *(replace(rule, roles=ROLES) for rule in _OTHERS))
RESOLVED: Final = ()

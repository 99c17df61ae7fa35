"""Context parallelism of SGLang: a prompt's tokens, or a cache's pages, spread over several ranks.

Also weights distributed over data-parallel ranks (DWDP), which turn the same ranks into something else again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from epd_operator.engines.sglang.attention import SPECULATES
from epd_operator.engines.sglang.base import IS_CUDA, IS_DECODE, IS_HIP, IS_PREFILL, IS_SM100, IS_V41, MODE
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.engines.sglang.moe import EP_SIZE_ASKED
from epd_operator.engines.sglang.parallel import (
    ATTN_CP_SIZE,
    ATTN_DP_SIZE,
    ATTN_DP_SIZE_ASKED,
    DCP_SIZE,
    DP_SIZE_ASKED,
    IS_DWDP,
    MOE_DP_SIZE,
    NNODES,
    PP_SIZE,
    PREFILL_CP,
    TP_SIZE,
)
from epd_operator.rules.expression import every, some
from epd_operator.rules.rule import ROLES, Rule

_PARALLEL: Final = "SGLang 0.5.23, srt/arg_groups/parallel_hook.py"
_V4: Final = "SGLang 0.5.23, srt/arg_groups/deepseek_v4_hook.py"
_RELEASES: Final = ("0.5.23", "dsv41-2026-09")

_DCP: Final = (
    Rule(
        id="decode-cp-positive",
        when=DCP_SIZE < 1,
        sides=(DCP_SIZE,),
        says="needs at least one decode context-parallel rank",
        fix="set dcp-size to 1 or more",
        source=f"{_PARALLEL}, handle_decode_context_parallelism",
        decided_by="parallel_hook.handle_decode_context_parallelism",
    ),
    Rule(
        id="decode-cp-without-pipeline",
        when=every(IS_SM100, DCP_SIZE > 1, ~written("dcp-comm-backend").given, PP_SIZE == 0),
        sides=(DCP_SIZE, PP_SIZE),
        says="divides the nodes by zero pipeline stages to choose how decode context parallelism communicates",
        fix="set pp-size to 1 or leave it out",
        source="SGLang 0.5.23, srt/utils/common.py, is_fi_a2a_supported",
        decided_by="common.is_fi_a2a_supported",
    ),
    Rule(
        id="decode-cp-divides-tp",
        when=every(DCP_SIZE > 1, TP_SIZE > 0, ~(TP_SIZE % DCP_SIZE == 0)),
        sides=(TP_SIZE, DCP_SIZE),
        says="cannot split {tp} tensor-parallel ranks into {dcp} equal parts; the engine fails while it builds its "
        "groups",
        fix="set dcp-size to a divisor of tp-size, or leave it out",
        source="SGLang 0.5.23, srt/distributed/parallel_state.py (read, not run)",
        operator_only=True,
        overridable=True,
        shows={"tp": TP_SIZE, "dcp": DCP_SIZE},
    ),
    Rule(
        id="decode-cp-or-prefill-cp",
        when=(DCP_SIZE > 1) & PREFILL_CP,
        sides=(DCP_SIZE, PREFILL_CP),
        says="cannot run decode context parallelism and prefill context parallelism in one server",
        fix="set dcp-size on the decode role and enable-prefill-cp on the prefill role",
        source=f"{_PARALLEL}, handle_decode_context_parallelism",
        decided_by="parallel_hook.handle_decode_context_parallelism",
    ),
    Rule(
        id="decode-cp-backend-without-cp",
        when=every(flag("dcp-comm-backend").isin(("a2a", "fi_a2a")), DCP_SIZE <= 1),
        sides=(written("dcp-comm-backend"), DCP_SIZE),
        says="an all-to-all back end serves only decode context parallelism, which is off",
        fix="remove dcp-comm-backend, or set dcp-size above 1",
        source=f"{_PARALLEL}, handle_decode_context_parallelism",
        decided_by="parallel_hook.handle_decode_context_parallelism",
    ),
    Rule(
        id="decode-cp-flashinfer-on-cuda",
        when=(flag("dcp-comm-backend") == "fi_a2a") & ~IS_CUDA,
        sides=(written("dcp-comm-backend"),),
        says="fi_a2a is FlashInfer's all-to-all, which runs on NVIDIA GPUs only",
        fix="set dcp-comm-backend: a2a, or remove it",
        source=f"{_PARALLEL}, handle_decode_context_parallelism",
        decided_by="parallel_hook.handle_decode_context_parallelism",
    ),
    Rule(
        id="decode-cp-replicated-query",
        when=every(
            flag("dcp-replicate-q-proj") == True,  # noqa: E712 - builds an expression
            (DCP_SIZE <= 1) | (flag("dcp-comm-backend") == "ag_rs"),
        ),
        sides=(written("dcp-replicate-q-proj"), DCP_SIZE, written("dcp-comm-backend")),
        says="a replicated query projection pays off only in decode context parallelism over an all-to-all back end",
        fix="remove dcp-replicate-q-proj, or set dcp-size above 1 and leave dcp-comm-backend out",
        source=f"{_PARALLEL}, handle_decode_context_parallelism",
        decided_by="parallel_hook.handle_decode_context_parallelism",
    ),
)

_PREFILL_CP: Final = (
    Rule(
        id="prefill-cp-strategy",
        when=every(IS_V41, PREFILL_CP, ~(flag("cp-strategy") == "interleave")),
        sides=(PREFILL_CP, written("cp-strategy")),
        says="prefill context parallelism of this model interleaves tokens over the ranks; zigzag is for other "
        "hardware, "
        "and there is no default",
        fix="set cp-strategy: interleave, or remove enable-prefill-cp",
        source=f"{_V4}, validate_deepseek_v4_cp",
        decided_by="deepseek_v4_hook.validate_deepseek_v4_cp",
        stated=_RELEASES,
    ),
    Rule(
        id="prefill-cp-on-rocm",
        when=every(IS_V41, PREFILL_CP, IS_HIP),
        sides=(PREFILL_CP,),
        says="DeepSeek-V4.1 has no prefill context parallelism on ROCm",
        fix="remove enable-prefill-cp",
        source=f"{_V4}, validate_deepseek_v4_cp",
        decided_by="deepseek_v4_hook.validate_deepseek_v4_cp",
        stated=("0.5.23", "dsv41-2026-09", "dsv41-37ae292e"),
    ),
    Rule(
        id="prefill-cp-or-attention-dp",
        when=every(IS_V41, PREFILL_CP, ~(ATTN_DP_SIZE == 1)),
        sides=(PREFILL_CP, ATTN_DP_SIZE_ASKED, DP_SIZE_ASKED),
        says="prefill context parallelism takes the whole tensor-parallel group, so no attention data parallelism fits "
        "in; "
        "dp-size counts as that here",
        fix="remove attn-dp-size and dp-size, or remove enable-prefill-cp",
        source=f"{_V4}, validate_deepseek_v4_cp",
        decided_by="deepseek_v4_hook.validate_deepseek_v4_cp",
        stated=_RELEASES,
    ),
    Rule(
        id="prefill-cp-two-data-widths",
        when=every(PREFILL_CP, ATTN_DP_SIZE_ASKED > 1, DP_SIZE_ASKED > 1),
        sides=(ATTN_DP_SIZE_ASKED, DP_SIZE_ASKED),
        says="asks for attention data parallelism and for replicas under prefill context parallelism",
        fix="remove attn-dp-size and dp-size",
        source="SGLang 0.5.23, srt/arg_groups/model_override_base.py, context_parallel_attn_dp_size",
        decided_by="model_override_base.context_parallel_attn_dp_size",
    ),
    Rule(
        id="prefill-cp-one-machine",
        when=every(IS_V41, PREFILL_CP, TP_SIZE > 8),
        sides=(PREFILL_CP, TP_SIZE),
        says="prefill context parallelism stays within one machine, at most 8 ranks",
        fix="set tp-size to 8 or less, or remove enable-prefill-cp",
        source=f"{_V4}, validate_deepseek_v4_cp",
        decided_by="deepseek_v4_hook.validate_deepseek_v4_cp",
        stated=_RELEASES,
    ),
    Rule(
        id="prefill-cp-nodes",
        when=every(IS_V41, PREFILL_CP, TP_SIZE <= 8, NNODES > 1),
        sides=(PREFILL_CP, NNODES),
        says="prefill context parallelism stays within one machine; the engine counts ranks, not the {nodes} nodes "
        "that they are spread over",
        fix="set nodes to 1, or remove enable-prefill-cp",
        source=f"{_V4}, validate_deepseek_v4_cp; sgl-project/sglang#40161",
        operator_only=True,
        overridable=True,
        shows={"nodes": NNODES},
    ),
)

_CP: Final = (
    Rule(
        id="attention-cp-divides-tp",
        when=every(
            ATTN_CP_SIZE > 1,
            some(~(TP_SIZE % ATTN_CP_SIZE == 0), ~(TP_SIZE % (ATTN_DP_SIZE * ATTN_CP_SIZE) == 0)),
        ),
        sides=(TP_SIZE, ATTN_CP_SIZE, ATTN_DP_SIZE),
        says="cannot split {tp} tensor-parallel ranks into {dp} attention groups of {cp} context-parallel ranks",
        fix="set tp-size to a multiple of attn-dp-size x attn-cp-size",
        source=f"{_PARALLEL}, handle_context_parallelism",
        decided_by="parallel_hook.handle_context_parallelism",
        shows={"tp": TP_SIZE, "dp": ATTN_DP_SIZE, "cp": ATTN_CP_SIZE},
    ),
    Rule(
        id="attention-cp-aiter-fusion",
        when=every(
            (ATTN_CP_SIZE > 1) | (MOE_DP_SIZE > 1),
            flag("enable-aiter-allreduce-fusion"),
            ~flag("enable-deterministic-inference"),
            ~written("rl-on-policy-target").given,
        ),
        sides=(written("enable-aiter-allreduce-fusion"), ATTN_CP_SIZE, MOE_DP_SIZE),
        says="aiter's fused all-reduce does not support context parallelism or data parallelism of the experts",
        fix="remove enable-aiter-allreduce-fusion",
        source=f"{_PARALLEL}, handle_context_parallelism",
        decided_by="parallel_hook.handle_context_parallelism",
    ),
    Rule(
        id="moe-dp-is-attention-cp",
        when=every(~(ATTN_CP_SIZE == MOE_DP_SIZE), ~(MOE_DP_SIZE == 1)),
        sides=(MOE_DP_SIZE, ATTN_CP_SIZE),
        says="data parallelism of the experts must be as wide as attention context parallelism, here {cp}, or 1",
        fix="remove moe-dp-size, or set attn-cp-size to the same number",
        source=f"{_PARALLEL}, handle_context_parallelism",
        decided_by="parallel_hook.handle_context_parallelism",
        shows={"cp": ATTN_CP_SIZE},
    ),
    Rule(
        id="moe-dp-divides-tp",
        when=every(
            MOE_DP_SIZE > 1,
            some(
                ~(TP_SIZE % MOE_DP_SIZE == 0),
                EP_SIZE_ASKED * MOE_DP_SIZE > TP_SIZE,
                (EP_SIZE_ASKED > 1) & ~(EP_SIZE_ASKED * MOE_DP_SIZE == TP_SIZE),
                ~(PP_SIZE == 1),
            ),
        ),
        sides=(MOE_DP_SIZE, EP_SIZE_ASKED, TP_SIZE, PP_SIZE),
        says="expert data parallelism splits the {tp} tensor-parallel ranks evenly, fills them together with ep-size "
        "when that is above 1, and does not work with pipeline parallelism",
        fix="remove moe-dp-size, or set ep-size to tp-size / moe-dp-size",
        source=f"{_PARALLEL}, handle_context_parallelism",
        decided_by="parallel_hook.handle_context_parallelism",
        shows={"tp": TP_SIZE},
    ),
    Rule(
        id="attention-cp-override",
        when=every(PREFILL_CP, written("attn-cp-size").given, ~(written("attn-cp-size") == ATTN_CP_SIZE)),
        sides=(PREFILL_CP, ATTN_CP_SIZE),
        says="prefill context parallelism takes all {ranks} ranks, whatever attn-cp-size says",
        fix="remove attn-cp-size",
        source=f"{_V4}, validate_deepseek_v4_cp",
        severity="warning",
        shows={"ranks": ATTN_CP_SIZE},
    ),
)

_DWDP: Final = (
    Rule(
        id="dwdp-fills-tp",
        when=IS_DWDP & ~(flag("dwdp-size") == TP_SIZE),
        sides=(written("dwdp-size"), TP_SIZE),
        says="weights distributed over data-parallel ranks take the whole tensor-parallel group",
        fix="set dwdp-size to tp-size, or remove it",
        source=f"{_PARALLEL}, handle_dwdp",
        decided_by="parallel_hook.handle_dwdp",
    ),
    Rule(
        id="dwdp-on-decode",
        when=IS_DWDP & IS_DECODE,
        sides=(written("dwdp-size"), MODE),
        says="weights distributed over data-parallel ranks would be fetched again for every token that a decode server "
        "makes",
        fix="remove dwdp-size; it belongs on the prefill role",
        source=f"{_PARALLEL}, handle_dwdp",
        decided_by="parallel_hook.handle_dwdp",
    ),
    Rule(
        id="dwdp-alone",
        when=every(
            IS_DWDP,
            some(
                flag("enable-eplb"),
                SPECULATES,
                ~(PP_SIZE == 1),
                flag("enable-two-batch-overlap"),
            ),
        ),
        sides=(
            written("dwdp-size"),
            written("enable-eplb"),
            written("speculative-algorithm"),
            PP_SIZE,
            written("enable-two-batch-overlap"),
        ),
        says="weights distributed over data-parallel ranks do not work with expert rebalancing, speculation, pipeline "
        "parallelism or two-batch overlap",
        fix="remove dwdp-size, or each of the others",
        source=f"{_PARALLEL}, handle_dwdp",
        decided_by="parallel_hook.handle_dwdp",
    ),
    Rule(
        id="dwdp-aggregated",
        when=IS_DWDP & ~IS_DECODE & ~IS_PREFILL,
        sides=(written("dwdp-size"), MODE),
        says="weights distributed over data-parallel ranks are fetched again for every token that this server decodes",
        fix="use it on the prefill role only",
        source=f"{_PARALLEL}, handle_dwdp",
        severity="warning",
    ),
)

RULES: Final = tuple(replace(rule, roles=ROLES) for rule in (*_DCP, *_PREFILL_CP, *_CP, *_DWDP))
RESOLVED: Final = ()

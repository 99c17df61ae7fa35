"""How many ways SGLang splits a model: tensor, data, context and pipeline parallelism.

The engine settles the widths in steps, and different checks read different steps. A name without suffix is the width
that the server runs with; `_asked` is the width before prefill context parallelism takes the whole group over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from epd_operator.engines.sglang.base import IS_DECODE, IS_SM100, IS_V41, MODE
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.rules.expression import every, model_of, named, some, when
from epd_operator.rules.rule import ROLES, Rule

_PARALLEL: Final = "SGLang 0.5.23, srt/arg_groups/parallel_hook.py"
_OVERRIDES: Final = "SGLang 0.5.23, srt/arg_groups/overrides.py"
_VALIDATION: Final = "SGLang 0.5.23, srt/arg_groups/validation_hook.py"

_LEGACY: Final = flag("enable-dp-attention") & (flag("attn-dp-size") == 1)
_WIDTHS: Final = (written("attn-dp-size"), written("dp-size"), written("dwdp-size"))

TP_SIZE: Final = named("tp_size", flag("tp-size"), written("tp-size"))
PP_SIZE: Final = named("pp_size", flag("pp-size"), written("pp-size"))
NNODES: Final = named("nnodes", flag("nnodes"), written("nnodes"))
DCP_SIZE: Final = named("dcp_size", flag("dcp-size"), written("dcp-size"))
PREFILL_CP: Final = named("enable_prefill_cp", flag("enable-prefill-cp"), written("enable-prefill-cp"))
IS_DWDP: Final = flag("dwdp-size") > 1
SCALE_JOINER: Final = flag("elastic-ep-join-mode") == "scale"

ATTN_DP_SIZE_GIVEN: Final = named(
    "attn_dp_size_given", when(_LEGACY, flag("dp-size"), flag("attn-dp-size")), *_WIDTHS[:2]
)
"""Attention data parallelism after the retired spelling `--dp-size N --enable-dp-attention` is read."""
DP_SIZE_GIVEN: Final = named("dp_size_given", when(_LEGACY, 1, flag("dp-size")), written("dp-size"))

ATTN_DP_SIZE_ASKED: Final = named("attn_dp_size_asked", when(IS_DWDP, flag("dwdp-size"), ATTN_DP_SIZE_GIVEN), *_WIDTHS)
DP_SIZE_ASKED: Final = named("dp_size_asked", when(IS_DWDP, 1, DP_SIZE_GIVEN), written("dp-size"))
ATTN_CP_SIZE_ASKED: Final = named("attn_cp_size_asked", flag("attn-cp-size"), written("attn-cp-size"))

ATTN_DP_SIZE: Final = named(
    "attn_dp_size", when(PREFILL_CP, ATTN_DP_SIZE_ASKED * DP_SIZE_ASKED, ATTN_DP_SIZE_ASKED), *_WIDTHS
)
DP_SIZE: Final = named("dp_size", when(PREFILL_CP, 1, DP_SIZE_ASKED), written("dp-size"))
ATTN_CP_SIZE: Final = named(
    "attn_cp_size",
    when(PREFILL_CP, TP_SIZE // ATTN_DP_SIZE, ATTN_CP_SIZE_ASKED),
    written("attn-cp-size"),
    written("enable-prefill-cp"),
)
ATTN_DP_ENABLED: Final = (ATTN_DP_SIZE > 1) | SCALE_JOINER
ATTN_DP_ENABLED_ASKED: Final = (ATTN_DP_SIZE_ASKED > 1) | SCALE_JOINER
ATTN_TP_SIZE: Final = named("attn_tp_size", TP_SIZE // ATTN_DP_SIZE // ATTN_CP_SIZE, written("tp-size"), *_WIDTHS[:2])
MOE_DP_SIZE: Final = named("moe_dp_size", when(IS_DWDP, 1, flag("moe-dp-size")), written("moe-dp-size"))
MOE_DENSE_TP_SIZE: Final = named(
    "moe_dense_tp_size", when(IS_DWDP | PREFILL_CP, 1, flag("moe-dense-tp-size")), written("moe-dense-tp-size")
)

ENABLE_DP_LM_HEAD: Final = named(
    "enable_dp_lm_head",
    every(~((DP_SIZE * ATTN_DP_SIZE == 1) & ~SCALE_JOINER), flag("enable-dp-lm-head") | IS_DWDP),
    written("enable-dp-lm-head"),
)
"""Dropped without a message where nothing is data parallel."""
DP_LM_HEAD_DROPPED: Final = flag("enable-dp-lm-head") & ~ENABLE_DP_LM_HEAD
TP_LM_HEAD_ALL_TO_ALL: Final = named(
    "enable_tp_lm_head_all_to_all",
    flag("enable-tp-lm-head-all-to-all").otherwise(
        every(IS_DECODE, ATTN_DP_SIZE > 1, TP_SIZE == ATTN_DP_SIZE, ATTN_CP_SIZE == 1, ~ENABLE_DP_LM_HEAD)
    ),
    written("enable-tp-lm-head-all-to-all"),
)
_OUTPUT_GROUPS: Final = model_of("o_groups", "int")
"""Groups of heads in the output projection; a rank computes whole ones."""
_HEAD: Final = flag("enable-tp-lm-head-all-to-all") == True  # noqa: E712 - builds an expression

_MEASURES_ATTENTION_TP: Final = every(
    IS_V41,
    IS_SM100,
    MODE == "null",
    ~PREFILL_CP,
    flag("dsv4-attn-backend") == "auto",
    flag("kv-cache-dtype").isin(("auto", "fp8_e4m3")),
)
"""Only here is the attention back end chosen by the width of attention tensor parallelism."""

_DATA: Final = (
    Rule(
        id="attention-dp-positive",
        when=ATTN_DP_SIZE < 1,
        sides=(ATTN_DP_SIZE,),
        says="needs at least one attention data-parallel group, and gets {groups}",
        fix="set attn-dp-size to 1, or to tp-size for attention data parallelism",
        source=f"{_PARALLEL}, handle_data_parallelism",
        decided_by="parallel_hook.handle_data_parallelism",
        shows={"groups": ATTN_DP_SIZE},
    ),
    Rule(
        id="attention-width-zero",
        when=every(_MEASURES_ATTENTION_TP, (ATTN_DP_SIZE_ASKED == 0) | (ATTN_CP_SIZE_ASKED == 0)),
        sides=(ATTN_DP_SIZE_ASKED, ATTN_CP_SIZE_ASKED),
        says="divides the tensor-parallel group by a width of zero",
        fix="set attn-dp-size and attn-cp-size to 1 or more",
        source="SGLang 0.5.23, srt/runtime_context.py, derive_attn_tp_size",
        decided_by="runtime_context.derive_attn_tp_size",
    ),
    Rule(
        id="widths-positive",
        when=some(*(width < 1 for width in (TP_SIZE, PP_SIZE, NNODES, DP_SIZE, ATTN_CP_SIZE_ASKED, flag("ep-size")))),
        sides=(TP_SIZE, PP_SIZE, NNODES, DP_SIZE, ATTN_CP_SIZE_ASKED, written("ep-size")),
        says="a server has at least one rank in each direction; the engine does not check it and fails later",
        fix="set each of these to 1 or more, or leave it out",
        source=f"{_PARALLEL}: no check",
        operator_only=True,
        overridable=True,
    ),
    Rule(
        id="attention-dp-or-replicas",
        when=every(ATTN_DP_SIZE_ASKED > 1, DP_SIZE_ASKED > 1, ~PREFILL_CP),
        sides=(ATTN_DP_SIZE_ASKED, DP_SIZE_ASKED),
        says="asks for attention data parallelism and for whole replicas in one server",
        fix="keep attn-dp-size and set dp-size to 1; run replicas as more pods",
        source=f"{_PARALLEL}, handle_data_parallelism",
        decided_by="parallel_hook.handle_data_parallelism",
    ),
    Rule(
        id="attention-dp-divides-tp",
        when=every(ATTN_DP_ENABLED, ~(TP_SIZE % ATTN_DP_SIZE == 0)),
        sides=(TP_SIZE, ATTN_DP_SIZE),
        says="cannot split {tp} tensor-parallel ranks into {dp} equal attention groups",
        fix="set attn-dp-size to a divisor of tp-size",
        source=f"{_PARALLEL}, handle_data_parallelism (a bare assertion: the engine gives no reason)",
        decided_by="parallel_hook.handle_data_parallelism",
        shows={"tp": TP_SIZE, "dp": ATTN_DP_SIZE},
    ),
    Rule(
        id="dp-lm-head-needs-attention-dp",
        when=ENABLE_DP_LM_HEAD & ~ATTN_DP_ENABLED,
        sides=(written("enable-dp-lm-head"), ATTN_DP_SIZE, DP_SIZE),
        says="a data-parallel LM head follows attention data parallelism, and replicas are not that",
        fix="remove enable-dp-lm-head, or set attn-dp-size and drop dp-size",
        source=f"{_OVERRIDES}, _dp_lm_head_validation",
        decided_by="overrides._dp_lm_head_validation",
    ),
    Rule(
        id="tp-lm-head-shape",
        when=every(
            _HEAD,
            some(~ATTN_DP_ENABLED, ENABLE_DP_LM_HEAD, ~(TP_SIZE == ATTN_DP_SIZE), ~(ATTN_CP_SIZE == 1)),
        ),
        sides=(written("enable-tp-lm-head-all-to-all"), ATTN_DP_SIZE, TP_SIZE, ATTN_CP_SIZE, ENABLE_DP_LM_HEAD),
        says="a tensor-parallel LM head with all-to-all needs attn-dp-size equal to tp-size, no context parallelism "
        "and no "
        "data-parallel LM head",
        fix="remove enable-tp-lm-head-all-to-all: the engine turns it on by itself where it can",
        source=f"{_OVERRIDES}, _dp_lm_head_validation",
        decided_by="overrides._dp_lm_head_validation",
    ),
)

_NODES: Final = (
    Rule(
        id="nodes-divide-ranks",
        when=every(~SCALE_JOINER, (NNODES == 0) | ~((TP_SIZE * PP_SIZE) % NNODES == 0)),
        sides=(TP_SIZE, NNODES),
        says="cannot spread {ranks} ranks evenly over {nodes} nodes",
        fix="set tp-size to a multiple of the number of nodes",
        source=f"{_VALIDATION}, check_server_args",
        decided_by="validation_hook.check_server_args",
        shows={"ranks": TP_SIZE * PP_SIZE, "nodes": NNODES},
    ),
    Rule(
        id="replicas-on-one-node",
        when=(DP_SIZE > 1) & ~(NNODES == 1),
        sides=(DP_SIZE, NNODES),
        says="dp-size starts whole replicas, which all live on one node, and this engine spans {nodes}",
        fix="remove dp-size: run replicas as more pods, or set attn-dp-size for attention data parallelism",
        source=f"{_VALIDATION}, check_server_args",
        decided_by="validation_hook.check_server_args",
        shows={"nodes": NNODES},
    ),
    Rule(
        id="dense-tp-size",
        when=every(MOE_DENSE_TP_SIZE.given, ~(MOE_DENSE_TP_SIZE == 1), ~(MOE_DENSE_TP_SIZE == TP_SIZE)),
        sides=(MOE_DENSE_TP_SIZE, TP_SIZE),
        says="runs dense MLP layers on one rank each or on the whole tensor-parallel group, nothing in between",
        fix="set moe-dense-tp-size to 1 or remove it",
        source=f"{_VALIDATION}, check_server_args",
        decided_by="validation_hook.check_server_args",
    ),
    Rule(
        id="attention-tp-groups",
        when=every(IS_V41, _OUTPUT_GROUPS % ATTN_TP_SIZE > 0),
        sides=(ATTN_TP_SIZE, written("attn-dp-size")),
        says="each rank of attention TP computes whole groups of the output projection, and {groups} groups do not "
        "split over attention TP {width}, so the model cannot be built",
        fix="set attn-dp-size so that tp-size divided by it divides {groups} (tp-size / {groups} where tp-size is a "
        "multiple of {groups}), or choose a tp-size of 1, 2, 4 or 8",
        source="SGLang 0.5.23, srt/models/deepseek_v4.py (read, not run)",
        severity="warning",
        shows={"groups": _OUTPUT_GROUPS, "width": ATTN_TP_SIZE},
    ),
)

RULES: Final = (*(replace(rule, roles=ROLES) for rule in _DATA), *_NODES)
RESOLVED: Final = (
    TP_SIZE,
    PP_SIZE,
    DP_SIZE,
    ATTN_DP_SIZE,
    ATTN_CP_SIZE,
    DCP_SIZE,
    ATTN_TP_SIZE,
    MOE_DENSE_TP_SIZE,
    PREFILL_CP,
    ENABLE_DP_LM_HEAD,
    TP_LM_HEAD_ALL_TO_ALL,
)

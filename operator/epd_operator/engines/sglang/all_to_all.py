"""The exchange of tokens between ranks that hold different experts: what each back end needs and cannot do."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from epd_operator.engines.sglang.base import IS_SM100, IS_V41
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.moe import (
    A2A_BACKEND,
    A2A_BACKEND_ASKED,
    A2A_BACKEND_GIVEN,
    EP_SIZE,
    FP4_EXPERTS,
    IS_ONLINE,
    ONLINE_RUNNERS,
    QUANTIZATION,
    RUNNER_BACKEND,
    RUNNER_BACKEND_ASKED,
    W4A16,
)
from epd_operator.engines.sglang.parallel import ATTN_DP_ENABLED, ATTN_DP_SIZE, NNODES, PREFILL_CP, TP_SIZE
from epd_operator.engines.sglang.switch import switch
from epd_operator.rules.expression import every, lower, some
from epd_operator.rules.rule import ROLES, Rule

_MOE: Final = "SGLang 0.5.23, srt/arg_groups/moe_hook.py"
_MEGA: Final = "SGLang 0.5.23, srt/arg_groups/mega_moe_hook.py"
_OVERRIDES: Final = "SGLang 0.5.23, srt/arg_groups/overrides.py"
_IN_MOE: Final = "moe_hook.handle_a2a_moe"

_OVERLAP: Final = flag("enable-two-batch-overlap") | flag("enable-single-batch-overlap")
_OVERLAPS: Final = (written("enable-two-batch-overlap"), written("enable-single-batch-overlap"))
_IS_FLASHINFER: Final = A2A_BACKEND == "flashinfer"
_IS_FUSED: Final = A2A_BACKEND == "flashinfer_megamoe"
_IS_V2: Final = A2A_BACKEND == "deepep_v2"
_IS_PPLX: Final = A2A_BACKEND == "pplx"
_ONE_GROUP_A_RANK: Final = ATTN_DP_ENABLED & (ATTN_DP_SIZE == TP_SIZE)
_EXCHANGED_RUNNERS: Final = (*ONLINE_RUNNERS, "flashinfer_cutlass", "deep_gemm")
_COMBINE: Final = lower(env("SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE"))
_DISPATCH: Final = written("flashinfer-a2a-dispatch-type")

_EXCHANGE: Final = (
    Rule(
        id="megamoe-overlap",
        when=(A2A_BACKEND_GIVEN == "megamoe") & _OVERLAP,
        sides=(A2A_BACKEND_GIVEN, *_OVERLAPS),
        says="MegaMoE exchanges and computes in one kernel, which leaves nothing to overlap with another batch",
        fix="remove enable-two-batch-overlap and enable-single-batch-overlap",
        source=f"{_MEGA}, check_mega_moe_compat",
        decided_by="mega_moe_hook.check_mega_moe_compat",
    ),
    Rule(
        id="prefill-cp-exchange",
        when=every(IS_V41, PREFILL_CP, ~A2A_BACKEND_ASKED.isin(("none", "deepep", "megamoe", "mori"))),
        sides=(PREFILL_CP, A2A_BACKEND_ASKED),
        says="prefill context parallelism exchanges tokens by none, deepep, megamoe or mori only",
        fix="set moe-a2a-backend to one of these, or remove enable-prefill-cp",
        source="SGLang 0.5.23, srt/arg_groups/deepseek_v4_hook.py, validate_deepseek_v4_cp",
        decided_by="deepseek_v4_hook.validate_deepseek_v4_cp",
        stated=("0.5.23", "dsv41-2026-09"),
    ),
    Rule(
        id="exchange-override",
        when=some(
            written("moe-a2a-backend").given & ~(written("moe-a2a-backend") == A2A_BACKEND),
            flag("enable-waterfill") & ~(A2A_BACKEND_ASKED == A2A_BACKEND),
        ),
        sides=(A2A_BACKEND, written("moe-runner-backend"), written("enable-waterfill"), written("dwdp-size")),
        says="the engine will exchange tokens by {exchange}: the runner megamoe, waterfill and weights distributed "
        "over "
        "data-parallel ranks each settle it, whatever moe-a2a-backend says",
        fix="set moe-a2a-backend to {exchange}, or remove what settles it",
        source=f"{_OVERRIDES}, _a2a_backend_overrides",
        severity="warning",
        shows={"exchange": A2A_BACKEND},
    ),
    Rule(
        id="expert-size-override",
        when=written("ep-size").given & ~(written("ep-size") == EP_SIZE),
        sides=(EP_SIZE, A2A_BACKEND, written("dwdp-size")),
        says="the engine will spread the experts over all {ranks} ranks, because of moe-a2a-backend {exchange} or "
        "dwdp-size",
        fix="set ep-size to {ranks} or remove it",
        source=f"{_OVERRIDES}, _a2a_ep_size",
        severity="warning",
        shows={"ranks": EP_SIZE, "exchange": A2A_BACKEND},
    ),
    Rule(
        id="flashinfer-dispatch-elsewhere",
        when=every(~_IS_FLASHINFER, _DISPATCH.given, ~(_DISPATCH == "auto")),
        sides=(_DISPATCH, A2A_BACKEND),
        says="only the flashinfer exchange has a dispatch type",
        fix="remove flashinfer-a2a-dispatch-type, or set moe-a2a-backend: flashinfer",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        id="flashinfer-exchange-shape",
        when=every(_IS_FLASHINFER, ~_ONE_GROUP_A_RANK),
        sides=(A2A_BACKEND, ATTN_DP_SIZE, TP_SIZE),
        says="the flashinfer exchange needs one attention data-parallel group a rank",
        fix="set attn-dp-size to tp-size, or choose another moe-a2a-backend",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        id="flashinfer-exchange-runner",
        when=every(_IS_FLASHINFER, ~RUNNER_BACKEND.isin(_EXCHANGED_RUNNERS)),
        sides=(A2A_BACKEND, RUNNER_BACKEND),
        says="the flashinfer exchange needs an explicit runner: flashinfer_cutlass, flashinfer_cutedsl, "
        "flashinfer_trtllm, flashinfer_trtllm_routed or deep_gemm",
        fix="set moe-runner-backend to deep_gemm or flashinfer_trtllm_routed",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        id="flashinfer-exchange-format",
        when=every(
            _IS_FLASHINFER,
            _DISPATCH.given,
            some(
                env("SGLANG_MOE_NVFP4_DISPATCH").given,
                _DISPATCH == "mxfp8",
                (_DISPATCH == "nvfp4") & ~(QUANTIZATION == "modelopt_fp4"),
            ),
        ),
        sides=(_DISPATCH, QUANTIZATION, env("SGLANG_MOE_NVFP4_DISPATCH")),
        says="the tokens' format on the wire follows the quantization: nvfp4 needs modelopt_fp4, mxfp8 needs mxfp8, "
        "and the variable SGLANG_MOE_NVFP4_DISPATCH repeats it",
        fix="set flashinfer-a2a-dispatch-type to bf16 or auto, and unset the variable",
        source=f"{_MOE}, handle_flashinfer_a2a_dispatch_type",
        decided_by="moe_hook.handle_flashinfer_a2a_dispatch_type",
    ),
    Rule(
        id="flashinfer-exchange-w4a16",
        when=every(
            _IS_FLASHINFER,
            RUNNER_BACKEND_ASKED == "flashinfer_cutedsl",
            W4A16,
            switch("SGLANG_MOE_NVFP4_DISPATCH") | _DISPATCH.isin(("auto", "nvfp4")),
        ),
        sides=(RUNNER_BACKEND_ASKED, _DISPATCH, env("SGLANG_MOE_NVFP4_DISPATCH")),
        says="with 4-bit weights and 16-bit activations tokens travel in bf16",
        fix="set flashinfer-a2a-dispatch-type: bf16 and unset SGLANG_MOE_NVFP4_DISPATCH",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        id="flashinfer-megamoe-shape",
        when=every(
            _IS_FUSED,
            some(
                ~_ONE_GROUP_A_RANK,
                ~(RUNNER_BACKEND == "flashinfer_megamoe"),
                ~IS_SM100,
                W4A16 & ~flag("dtype").isin(("auto", "bfloat16")),
            ),
        ),
        sides=(A2A_BACKEND, ATTN_DP_SIZE, TP_SIZE, RUNNER_BACKEND),
        says="flashinfer_megamoe needs SM100 GPUs, attn-dp-size equal to tp-size, itself as the runner, and bfloat16 "
        "beside "
        "4-bit weights",
        fix="set moe-a2a-backend: megamoe, or attn-dp-size to tp-size without moe-runner-backend on SM100",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        id="flashinfer-megamoe-experts",
        when=every(_IS_FUSED, ~FP4_EXPERTS, ~(QUANTIZATION == "modelopt_fp4"), ~(IS_ONLINE & W4A16)),
        sides=(A2A_BACKEND, env("SGLANG_DSV4_FP4_EXPERTS")),
        says="flashinfer_megamoe computes FP4 experts, and this variable says that they are not FP4",
        fix="unset SGLANG_DSV4_FP4_EXPERTS",
        source=f"{_MOE}, validate_flashinfer_megamoe_model",
        decided_by="moe_hook.validate_flashinfer_megamoe_model",
    ),
    Rule(
        id="flashinfer-megamoe-combine",
        when=every(
            _IS_FUSED,
            _COMBINE.given,
            ~(_COMBINE == "bf16"),
            some(~_COMBINE.isin(("mxfp8", "nvfp4")), W4A16, switch("SGLANG_FLASHINFER_MEGAMOE_IN_KERNEL_FC2_REDUCE")),
        ),
        sides=(A2A_BACKEND, env("SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE")),
        says="results are combined in bf16, mxfp8 or nvfp4; the last two with neither 16-bit activations nor the "
        "reduction "
        "in the kernel",
        fix="unset SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE",
        source=f"{_MOE}, validate_flashinfer_megamoe_envs",
        decided_by="moe_hook.validate_flashinfer_megamoe_envs",
    ),
    Rule(
        id="pplx-shape",
        when=_IS_PPLX & ~(ATTN_DP_SIZE >= 2),
        sides=(A2A_BACKEND, ATTN_DP_SIZE),
        says="pplx exchanges tokens between at least two attention data-parallel groups",
        fix="set attn-dp-size to tp-size, or choose another moe-a2a-backend",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        id="pplx-runner",
        when=_IS_PPLX & ~RUNNER_BACKEND_ASKED.isin(("deep_gemm", "auto")),
        sides=(A2A_BACKEND, RUNNER_BACKEND_ASKED),
        says="pplx feeds the deep_gemm runner only",
        fix="remove moe-runner-backend",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        id="pplx-mode",
        when=_IS_PPLX & (flag("deepep-mode") == "normal"),
        sides=(A2A_BACKEND, written("deepep-mode")),
        says="pplx has no normal mode",
        fix="set deepep-mode to low_latency or auto",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        id="deepep-v2-runner",
        when=_IS_V2 & ~RUNNER_BACKEND_ASKED.isin(("deep_gemm", "auto")),
        sides=(A2A_BACKEND, RUNNER_BACKEND_ASKED),
        says="DeepEP v2 feeds the deep_gemm runner only",
        fix="remove moe-runner-backend",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        id="deepep-v2-alone",
        when=every(
            _IS_V2,
            some(
                _OVERLAP,
                flag("enforce-shared-experts-fusion"),
                (flag("deepep-v2-mode") == "direct") & (NNODES > 1),
            ),
        ),
        sides=(A2A_BACKEND, *_OVERLAPS, written("enforce-shared-experts-fusion"), written("deepep-v2-mode"), NNODES),
        says="DeepEP v2 supports neither batch overlap nor fused shared experts, and its direct mode stays within a "
        "node",
        fix="remove enable-two-batch-overlap, enable-single-batch-overlap and enforce-shared-experts-fusion; set "
        "deepep-v2-mode: hybrid across nodes",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
)

RULES: Final = tuple(replace(rule, roles=ROLES) for rule in _EXCHANGE)
RESOLVED: Final = ()

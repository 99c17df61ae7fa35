"""Mixture of experts in SGLang: which back end exchanges tokens between ranks, which one computes the experts.

Several settings overrule each other on the way. `_given` is after the alias `--moe-runner-backend megamoe` is read,
`_asked` after weights distributed over data-parallel ranks had their say, no suffix is what runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from epd_operator.engines.expression import every, lower, named, some, when
from epd_operator.engines.rule import ROLES, Rule
from epd_operator.engines.sglang.base import IS_CUDA, IS_SM100, IS_V41
from epd_operator.engines.sglang.given import env, flag, written
from epd_operator.engines.sglang.parallel import (
    ATTN_DP_ENABLED,
    ATTN_DP_SIZE,
    IS_DWDP,
    NNODES,
    PREFILL_CP,
    TP_SIZE,
)
from epd_operator.engines.sglang.switch import switch

_MOE: Final = "SGLang 0.5.23, srt/arg_groups/moe_hook.py"
_MEGA: Final = "SGLang 0.5.23, srt/arg_groups/mega_moe_hook.py"
_OVERRIDES: Final = "SGLang 0.5.23, srt/arg_groups/overrides.py"
_A2A: Final = (written("moe-a2a-backend"), written("moe-runner-backend"), written("enable-waterfill"))
_RUNNER: Final = (written("moe-runner-backend"), written("moe-a2a-backend"))

A2A_BACKEND_GIVEN: Final = named(
    "moe_a2a_backend_given", when(flag("moe-runner-backend") == "megamoe", "megamoe", flag("moe-a2a-backend")), *_A2A
)
A2A_BACKEND_ASKED: Final = named("moe_a2a_backend_asked", when(IS_DWDP, "none", A2A_BACKEND_GIVEN), *_A2A)
"""What the checks of the model see."""
_A2A_FILLED: Final = when(
    flag("enable-waterfill") & ~A2A_BACKEND_ASKED.isin(("deepep", "megamoe")), "deepep", A2A_BACKEND_ASKED
)
A2A_BACKEND: Final = named("moe_a2a_backend", when(_A2A_FILLED == "ascend_tp", "none", _A2A_FILLED), *_A2A)
SPANNING: Final = (
    *("megamoe", "deepep", "deepep_v2", "mooncake", "nixl"),
    *("ascend_fuseep", "flashinfer", "flashinfer_megamoe", "mori", "pplx"),
)
"""Back ends that spread the experts over the whole tensor-parallel group. Source: overrides.py, _a2a_ep_size."""
EP_SIZE_ASKED: Final = named("ep_size_asked", when(IS_DWDP, flag("dwdp-size"), flag("ep-size")), written("ep-size"))
EP_SIZE: Final = named(
    "ep_size", when(A2A_BACKEND.isin(SPANNING), TP_SIZE, EP_SIZE_ASKED), written("ep-size"), written("moe-a2a-backend")
)

QUANTIZATION: Final = named(
    "quantization", when(flag("quantization") == "unquant", None, flag("quantization")), written("quantization")
)
_FP4_EXPERTS: Final = switch("SGLANG_DSV4_FP4_EXPERTS", default=True)
"""The config.json of the released checkpoint leaves the experts' format to this variable (configs/model_config.py)."""
_RUNNER_GIVEN: Final = when(flag("moe-runner-backend") == "megamoe", "auto", flag("moe-runner-backend"))
_RUNNER_OF_MODEL: Final = when(
    every(
        _RUNNER_GIVEN == "auto",
        IS_CUDA,
        A2A_BACKEND_ASKED == "none",
        _FP4_EXPERTS,
        ~switch("SGLANG_DSV4_FP4_DEQUANT"),
    ),
    "flashinfer_mxfp4",
    _RUNNER_GIVEN,
)
_W4A16: Final = switch("SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16")
_IS_ONLINE: Final = QUANTIZATION == "nvfp4_online"
_FUSED_ONLINE: Final = (A2A_BACKEND_ASKED == "flashinfer_megamoe") & _W4A16
RUNNER_BACKEND_ASKED: Final = named(
    "moe_runner_backend_asked",
    when(
        _IS_ONLINE & (_RUNNER_OF_MODEL == "auto"),
        when(_FUSED_ONLINE, "flashinfer_megamoe", "flashinfer_trtllm"),
        _RUNNER_OF_MODEL,
    ),
    *_RUNNER,
)
RUNNER_BACKEND: Final = named(
    "moe_runner_backend",
    when(
        (RUNNER_BACKEND_ASKED == "auto") & A2A_BACKEND.isin(("deepep_v2", "pplx")),
        "deep_gemm",
        when(
            (RUNNER_BACKEND_ASKED == "auto") & (A2A_BACKEND == "flashinfer_megamoe"),
            "flashinfer_megamoe",
            when(
                every(
                    RUNNER_BACKEND_ASKED == "flashinfer_trtllm",
                    A2A_BACKEND == "flashinfer",
                    flag("flashinfer-a2a-dispatch-type").given,
                ),
                "flashinfer_trtllm_routed",
                RUNNER_BACKEND_ASKED,
            ),
        ),
    ),
    *_RUNNER,
)
_OVERLAP: Final = flag("enable-two-batch-overlap") | flag("enable-single-batch-overlap")
_OVERLAPS: Final = (written("enable-two-batch-overlap"), written("enable-single-batch-overlap"))
_EP_ODD: Final = ~(EP_SIZE_ASKED == 1) & ~(EP_SIZE_ASKED == TP_SIZE)
_IS_FLASHINFER: Final = A2A_BACKEND == "flashinfer"
_IS_FUSED: Final = A2A_BACKEND == "flashinfer_megamoe"
_IS_V2: Final = A2A_BACKEND == "deepep_v2"
_IS_PPLX: Final = A2A_BACKEND == "pplx"
_ONE_GROUP_A_RANK: Final = ATTN_DP_ENABLED & (ATTN_DP_SIZE == TP_SIZE)
_ONLINE_RUNNERS: Final = ("flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutedsl")
_EXCHANGED_RUNNERS: Final = (*_ONLINE_RUNNERS, "flashinfer_cutlass", "deep_gemm")
_IN_MOE: Final = "moe_hook.handle_a2a_moe"
_IN_KERNEL: Final = "moe_hook.handle_moe_kernel_config"
_COMBINE: Final = lower(env("SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE"))
_DISPATCH: Final = written("flashinfer-a2a-dispatch-type")

_RUNNERS: Final = (
    Rule(
        "moe-online-quantization",
        every(
            _IS_ONLINE,
            some(
                ~IS_SM100,
                ~RUNNER_BACKEND_ASKED.isin(_ONLINE_RUNNERS)
                & ~((RUNNER_BACKEND_ASKED == "flashinfer_megamoe") & _FUSED_ONLINE),
            ),
        ),
        (QUANTIZATION, RUNNER_BACKEND_ASKED),
        "quantizing experts to NVFP4 at load needs an SM100 GPU and a runner flashinfer_trtllm, "
        "flashinfer_trtllm_routed or flashinfer_cutedsl",
        "remove quantization: the released checkpoint holds FP4 experts already",
        f"{_OVERRIDES}, _moe_runner_backend_quant_constraints",
        decided_by="overrides._moe_runner_backend_quant_constraints",
    ),
    Rule(
        "moe-runner-quantization",
        some(
            every(RUNNER_BACKEND_ASKED == "flashinfer_cutlass", QUANTIZATION.given, ~(QUANTIZATION == "modelopt_fp4")),
            every(
                RUNNER_BACKEND_ASKED == "flashinfer_cutedsl",
                ~QUANTIZATION.isin(("modelopt_fp4", "modelopt_mixed", "nvfp4_online")),
            ),
        ),
        (RUNNER_BACKEND_ASKED, QUANTIZATION),
        "this runner computes NVFP4 experts (flashinfer_cutlass also unquantized ones), which the released checkpoint "
        "does not have",
        "remove moe-runner-backend, or set it to flashinfer_mxfp4, deep_gemm, triton or marlin",
        f"{_MOE}, handle_moe_kernel_config",
        decided_by=_IN_KERNEL,
    ),
    Rule(
        "moe-runner-expert-split",
        some(
            RUNNER_BACKEND_ASKED.isin(("flashinfer_cutlass", "flashinfer_cutedsl")) & _EP_ODD,
            every(RUNNER_BACKEND_ASKED == "cutlass", QUANTIZATION.isin(("fp8", "mxfp8")), ~(EP_SIZE_ASKED == 1)),
        ),
        (RUNNER_BACKEND_ASKED, EP_SIZE_ASKED, TP_SIZE, QUANTIZATION),
        "this runner takes experts whole on every rank (ep-size 1) or, flashinfer_cutlass and flashinfer_cutedsl only, "
        "spread over all ranks (ep-size equal to tp-size)",
        "remove ep-size, or choose another moe-runner-backend",
        f"{_MOE}, handle_moe_kernel_config",
        decided_by=_IN_KERNEL,
    ),
    Rule(
        "moe-cutedsl-exchange",
        every(
            RUNNER_BACKEND_ASKED == "flashinfer_cutedsl",
            some(
                ~A2A_BACKEND_ASKED.isin(("none", "deepep", "flashinfer")),
                every(
                    A2A_BACKEND_ASKED == "deepep",
                    _IS_ONLINE | switch("SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION"),
                ),
            ),
        ),
        (RUNNER_BACKEND_ASKED, A2A_BACKEND_ASKED),
        "flashinfer_cutedsl takes tokens exchanged by none, flashinfer or, without per-token activation scales, deepep",
        "set moe-a2a-backend to none or flashinfer",
        f"{_MOE}, handle_moe_kernel_config",
        decided_by=_IN_KERNEL,
    ),
    Rule(
        "moe-cutedsl-normal-mode",
        every(RUNNER_BACKEND_ASKED == "flashinfer_cutedsl", A2A_BACKEND == "deepep", flag("deepep-mode") == "normal"),
        (RUNNER_BACKEND_ASKED, written("deepep-mode")),
        "flashinfer_cutedsl takes tokens from DeepEP in its low-latency layout only",
        "set deepep-mode to low_latency or auto",
        f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        "moe-shared-experts-tp",
        flag("shared-experts-tp-size").given,
        (written("shared-experts-tp-size"),),
        "a width of their own for shared experts exists for another model only",
        "remove shared-experts-tp-size",
        "SGLang 0.5.23, srt/arg_groups/parallel_hook.py, handle_shared_experts_tp",
        decided_by="parallel_hook.handle_shared_experts_tp",
    ),
)

_EXCHANGE: Final = (
    Rule(
        "megamoe-overlap",
        (A2A_BACKEND_GIVEN == "megamoe") & _OVERLAP,
        (A2A_BACKEND_GIVEN, *_OVERLAPS),
        "MegaMoE exchanges and computes in one kernel, which leaves nothing to overlap with another batch",
        "remove enable-two-batch-overlap and enable-single-batch-overlap",
        f"{_MEGA}, check_mega_moe_compat",
        decided_by="mega_moe_hook.check_mega_moe_compat",
    ),
    Rule(
        "prefill-cp-exchange",
        every(IS_V41, PREFILL_CP, ~A2A_BACKEND_ASKED.isin(("none", "deepep", "megamoe", "mori"))),
        (PREFILL_CP, A2A_BACKEND_ASKED),
        "prefill context parallelism exchanges tokens by none, deepep, megamoe or mori only",
        "set moe-a2a-backend to one of these, or remove enable-prefill-cp",
        "SGLang 0.5.23, srt/arg_groups/deepseek_v4_hook.py, validate_deepseek_v4_cp",
        decided_by="deepseek_v4_hook.validate_deepseek_v4_cp",
        stated=("0.5.23", "dsv41-2026-09"),
    ),
    Rule(
        "exchange-override",
        some(
            written("moe-a2a-backend").given & ~(written("moe-a2a-backend") == A2A_BACKEND),
            flag("enable-waterfill") & ~(A2A_BACKEND_ASKED == A2A_BACKEND),
        ),
        (A2A_BACKEND, written("moe-runner-backend"), written("enable-waterfill"), written("dwdp-size")),
        "the engine will exchange tokens by {exchange}: the runner megamoe, waterfill and weights distributed over "
        "data-parallel ranks each settle it, whatever moe-a2a-backend says",
        "set moe-a2a-backend to {exchange}, or remove what settles it",
        f"{_OVERRIDES}, _a2a_backend_overrides",
        severity="warning",
        shows={"exchange": A2A_BACKEND},
    ),
    Rule(
        "expert-size-override",
        written("ep-size").given & ~(written("ep-size") == EP_SIZE),
        (EP_SIZE, A2A_BACKEND, written("dwdp-size")),
        "the engine will spread the experts over all {ranks} ranks, because of moe-a2a-backend {exchange} or dwdp-size",
        "set ep-size to {ranks} or remove it",
        f"{_OVERRIDES}, _a2a_ep_size",
        severity="warning",
        shows={"ranks": EP_SIZE, "exchange": A2A_BACKEND},
    ),
    Rule(
        "flashinfer-dispatch-elsewhere",
        every(~_IS_FLASHINFER, _DISPATCH.given, ~(_DISPATCH == "auto")),
        (_DISPATCH, A2A_BACKEND),
        "only the flashinfer exchange has a dispatch type",
        "remove flashinfer-a2a-dispatch-type, or set moe-a2a-backend: flashinfer",
        f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        "flashinfer-exchange-shape",
        every(_IS_FLASHINFER, ~_ONE_GROUP_A_RANK),
        (A2A_BACKEND, ATTN_DP_SIZE, TP_SIZE),
        "the flashinfer exchange needs one attention data-parallel group a rank",
        "set attn-dp-size to tp-size, or choose another moe-a2a-backend",
        f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        "flashinfer-exchange-runner",
        every(_IS_FLASHINFER, ~RUNNER_BACKEND.isin(_EXCHANGED_RUNNERS)),
        (A2A_BACKEND, RUNNER_BACKEND),
        "the flashinfer exchange feeds a runner that is named: flashinfer_cutlass, flashinfer_cutedsl, "
        "flashinfer_trtllm, flashinfer_trtllm_routed or deep_gemm",
        "set moe-runner-backend to deep_gemm or flashinfer_trtllm_routed",
        f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        "flashinfer-exchange-format",
        every(
            _IS_FLASHINFER,
            _DISPATCH.given,
            some(
                env("SGLANG_MOE_NVFP4_DISPATCH").given,
                _DISPATCH == "mxfp8",
                (_DISPATCH == "nvfp4") & ~(QUANTIZATION == "modelopt_fp4"),
            ),
        ),
        (_DISPATCH, QUANTIZATION, env("SGLANG_MOE_NVFP4_DISPATCH")),
        "the tokens' format on the wire follows the quantization: nvfp4 needs modelopt_fp4, mxfp8 needs mxfp8, and the "
        "variable SGLANG_MOE_NVFP4_DISPATCH says it a second time",
        "set flashinfer-a2a-dispatch-type to bf16 or auto, and unset the variable",
        f"{_MOE}, handle_flashinfer_a2a_dispatch_type",
        decided_by="moe_hook.handle_flashinfer_a2a_dispatch_type",
    ),
    Rule(
        "flashinfer-exchange-w4a16",
        every(
            _IS_FLASHINFER,
            RUNNER_BACKEND_ASKED == "flashinfer_cutedsl",
            _W4A16,
            switch("SGLANG_MOE_NVFP4_DISPATCH") | _DISPATCH.isin(("auto", "nvfp4")),
        ),
        (RUNNER_BACKEND_ASKED, _DISPATCH, env("SGLANG_MOE_NVFP4_DISPATCH")),
        "with 4-bit weights and 16-bit activations tokens travel in bf16",
        "set flashinfer-a2a-dispatch-type: bf16 and unset SGLANG_MOE_NVFP4_DISPATCH",
        f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        "flashinfer-megamoe-shape",
        every(_IS_FUSED, some(~_ONE_GROUP_A_RANK, ~(RUNNER_BACKEND == "flashinfer_megamoe"), ~IS_SM100)),
        (A2A_BACKEND, ATTN_DP_SIZE, TP_SIZE, RUNNER_BACKEND),
        "flashinfer_megamoe needs SM100 GPUs, attn-dp-size equal to tp-size and itself as the runner",
        "set moe-a2a-backend: megamoe, or attn-dp-size to tp-size without moe-runner-backend on SM100",
        f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        "flashinfer-megamoe-experts",
        every(_IS_FUSED, ~_FP4_EXPERTS, ~(QUANTIZATION == "modelopt_fp4"), ~(_IS_ONLINE & _W4A16)),
        (A2A_BACKEND, env("SGLANG_DSV4_FP4_EXPERTS")),
        "flashinfer_megamoe computes FP4 experts, and this variable says that they are not",
        "unset SGLANG_DSV4_FP4_EXPERTS",
        f"{_MOE}, validate_flashinfer_megamoe_model",
        decided_by="moe_hook.validate_flashinfer_megamoe_model",
    ),
    Rule(
        "flashinfer-megamoe-combine",
        every(
            _IS_FUSED,
            _COMBINE.given,
            ~(_COMBINE == "bf16"),
            some(~_COMBINE.isin(("mxfp8", "nvfp4")), _W4A16, switch("SGLANG_FLASHINFER_MEGAMOE_IN_KERNEL_FC2_REDUCE")),
        ),
        (A2A_BACKEND, env("SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE")),
        "results are combined in bf16, mxfp8 or nvfp4; the last two with neither 16-bit activations nor the reduction "
        "in the kernel",
        "unset SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE",
        f"{_MOE}, validate_flashinfer_megamoe_envs",
        decided_by="moe_hook.validate_flashinfer_megamoe_envs",
    ),
    Rule(
        "pplx-shape",
        _IS_PPLX & ~(ATTN_DP_SIZE >= 2),
        (A2A_BACKEND, ATTN_DP_SIZE),
        "pplx exchanges tokens between at least two attention data-parallel groups",
        "set attn-dp-size to tp-size, or choose another moe-a2a-backend",
        f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        "pplx-runner",
        _IS_PPLX & ~RUNNER_BACKEND_ASKED.isin(("deep_gemm", "auto")),
        (A2A_BACKEND, RUNNER_BACKEND_ASKED),
        "pplx feeds the deep_gemm runner only",
        "remove moe-runner-backend",
        f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        "pplx-mode",
        _IS_PPLX & (flag("deepep-mode") == "normal"),
        (A2A_BACKEND, written("deepep-mode")),
        "pplx has no normal mode",
        "set deepep-mode to low_latency or auto",
        f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        "deepep-v2-runner",
        _IS_V2 & ~RUNNER_BACKEND_ASKED.isin(("deep_gemm", "auto")),
        (A2A_BACKEND, RUNNER_BACKEND_ASKED),
        "DeepEP v2 feeds the deep_gemm runner only",
        "remove moe-runner-backend",
        f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        "deepep-v2-alone",
        every(
            _IS_V2,
            some(
                _OVERLAP,
                flag("enforce-shared-experts-fusion"),
                (flag("deepep-v2-mode") == "direct") & (NNODES > 1),
            ),
        ),
        (A2A_BACKEND, *_OVERLAPS, written("enforce-shared-experts-fusion"), written("deepep-v2-mode"), NNODES),
        "DeepEP v2 knows neither batch overlap nor fused shared experts, and its direct mode stays within a node",
        "remove enable-two-batch-overlap, enable-single-batch-overlap and enforce-shared-experts-fusion; set "
        "deepep-v2-mode: hybrid across nodes",
        f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
)

RULES: Final = tuple(replace(rule, roles=ROLES) for rule in (*_RUNNERS, *_EXCHANGE))
RESOLVED: Final = (A2A_BACKEND, RUNNER_BACKEND, EP_SIZE)

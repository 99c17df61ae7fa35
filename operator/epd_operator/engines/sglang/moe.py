"""Mixture of experts in SGLang: which back end exchanges tokens between ranks, which one computes the experts.

Several settings overrule each other on the way. `_given` is after the alias `--moe-runner-backend megamoe` is read,
`_asked` after weights distributed over data-parallel ranks had their say, no suffix is what runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from epd_operator.engines.sglang.base import IS_CUDA, IS_SM100
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.engines.sglang.parallel import IS_DWDP, MOE_DP_SIZE, SCALE_JOINER, TP_SIZE
from epd_operator.engines.sglang.switch import switch
from epd_operator.rules.expression import every, named, some, when
from epd_operator.rules.rule import ROLES, Rule

_MOE: Final = "SGLang 0.5.23, srt/arg_groups/moe_hook.py"
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
FP4_EXPERTS: Final = switch("SGLANG_DSV4_FP4_EXPERTS", default=True)
"""The config.json of the released checkpoint leaves the experts' format to this variable (configs/model_config.py)."""
_RUNNER_GIVEN: Final = when(flag("moe-runner-backend") == "megamoe", "auto", flag("moe-runner-backend"))
_RUNNER_OF_MODEL: Final = when(
    every(
        _RUNNER_GIVEN == "auto",
        IS_CUDA,
        A2A_BACKEND_ASKED == "none",
        FP4_EXPERTS,
        ~switch("SGLANG_DSV4_FP4_DEQUANT"),
    ),
    "flashinfer_mxfp4",
    _RUNNER_GIVEN,
)
W4A16: Final = switch("SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16")
IS_ONLINE: Final = QUANTIZATION == "nvfp4_online"
_FUSED_ONLINE: Final = (A2A_BACKEND_ASKED == "flashinfer_megamoe") & W4A16
RUNNER_BACKEND_ASKED: Final = named(
    "moe_runner_backend_asked",
    when(
        IS_ONLINE & (_RUNNER_OF_MODEL == "auto"),
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
_EP_ODD: Final = ~(EP_SIZE_ASKED == 1) & ~(EP_SIZE_ASKED == TP_SIZE)
ONLINE_RUNNERS: Final = ("flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutedsl")
_IN_MOE: Final = "moe_hook.handle_a2a_moe"
_TRTLLM_RUNNERS: Final = ("flashinfer_trtllm", "flashinfer_trtllm_routed", "experimental_sgl_trtllm")
_IN_KERNEL: Final = "moe_hook.handle_moe_kernel_config"

_RUNNERS: Final = (
    Rule(
        id="moe-online-quantization",
        when=every(
            IS_ONLINE,
            some(
                ~IS_SM100,
                ~RUNNER_BACKEND_ASKED.isin(ONLINE_RUNNERS)
                & ~((RUNNER_BACKEND_ASKED == "flashinfer_megamoe") & _FUSED_ONLINE),
            ),
        ),
        sides=(QUANTIZATION, RUNNER_BACKEND_ASKED),
        says="quantizing experts to NVFP4 at load needs an SM100 GPU and a runner flashinfer_trtllm, "
        "flashinfer_trtllm_routed or flashinfer_cutedsl",
        fix="remove quantization: the released checkpoint holds FP4 experts already",
        source=f"{_OVERRIDES}, _moe_runner_backend_quant_constraints",
        decided_by="overrides._moe_runner_backend_quant_constraints",
    ),
    Rule(
        id="moe-runner-quantization",
        when=some(
            (RUNNER_BACKEND_ASKED == "flashinfer_cutedsl") & ~QUANTIZATION.isin(("modelopt_fp4", "nvfp4_online")),
            every(RUNNER_BACKEND_ASKED == "flashinfer_cutlass", QUANTIZATION.given, ~(QUANTIZATION == "modelopt_fp4")),
            every(
                RUNNER_BACKEND_ASKED.isin(_TRTLLM_RUNNERS),
                QUANTIZATION.given,
                ~QUANTIZATION.isin(("modelopt_fp4", "nvfp4_online", "fp8")),
            ),
        ),
        sides=(RUNNER_BACKEND_ASKED, QUANTIZATION),
        says="flashinfer_cutedsl computes NVFP4 experts, which the released checkpoint does not have; "
        "flashinfer_cutlass "
        "and the flashinfer_trtllm kind take them or no quantization, the latter fp8 too",
        fix="remove moe-runner-backend, or set it to flashinfer_mxfp4, deep_gemm, triton or marlin",
        source=f"{_MOE}, handle_moe_kernel_config",
        decided_by=_IN_KERNEL,
    ),
    Rule(
        id="moe-runner-expert-split",
        when=some(
            RUNNER_BACKEND_ASKED.isin(("flashinfer_cutlass", "flashinfer_cutedsl")) & _EP_ODD,
            every(RUNNER_BACKEND_ASKED == "cutlass", QUANTIZATION.isin(("fp8", "mxfp8")), ~(EP_SIZE_ASKED == 1)),
        ),
        sides=(RUNNER_BACKEND_ASKED, EP_SIZE_ASKED, TP_SIZE, QUANTIZATION),
        says="this runner takes experts whole on every rank (ep-size 1) or, flashinfer_cutlass and flashinfer_cutedsl "
        "only, "
        "spread over all ranks (ep-size equal to tp-size)",
        fix="remove ep-size, or choose another moe-runner-backend",
        source=f"{_MOE}, handle_moe_kernel_config",
        decided_by=_IN_KERNEL,
    ),
    Rule(
        id="moe-cutedsl-exchange",
        when=every(
            RUNNER_BACKEND_ASKED == "flashinfer_cutedsl",
            some(
                ~A2A_BACKEND_ASKED.isin(("none", "deepep", "flashinfer")),
                every(
                    A2A_BACKEND_ASKED == "deepep",
                    IS_ONLINE | switch("SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION"),
                ),
            ),
        ),
        sides=(RUNNER_BACKEND_ASKED, A2A_BACKEND_ASKED),
        says="flashinfer_cutedsl takes tokens exchanged by none, flashinfer or, without per-token activation scales, "
        "deepep",
        fix="set moe-a2a-backend to none or flashinfer",
        source=f"{_MOE}, handle_moe_kernel_config",
        decided_by=_IN_KERNEL,
    ),
    Rule(
        id="moe-cutedsl-normal-mode",
        when=every(
            RUNNER_BACKEND_ASKED == "flashinfer_cutedsl", A2A_BACKEND == "deepep", flag("deepep-mode") == "normal"
        ),
        sides=(RUNNER_BACKEND_ASKED, written("deepep-mode")),
        says="flashinfer_cutedsl takes tokens from DeepEP in its low-latency layout only",
        fix="set deepep-mode to low_latency or auto",
        source=f"{_MOE}, handle_a2a_moe",
        decided_by=_IN_MOE,
    ),
    Rule(
        id="moe-shared-experts-tp",
        when=flag("shared-experts-tp-size").given,
        sides=(written("shared-experts-tp-size"),),
        says="a width of their own for shared experts exists for another model only",
        fix="remove shared-experts-tp-size",
        source="SGLang 0.5.23, srt/arg_groups/parallel_hook.py, handle_shared_experts_tp",
        decided_by="parallel_hook.handle_shared_experts_tp",
    ),
    Rule(
        id="expert-ranks-divide-tp",
        when=every(~SCALE_JOINER, MOE_DP_SIZE == 1, EP_SIZE > 0, TP_SIZE > 0, ~(TP_SIZE % EP_SIZE == 0)),
        sides=(EP_SIZE, TP_SIZE),
        says="cannot split {tp} tensor-parallel ranks into {ep} equal groups of experts; the engine does not check it "
        "and fails while it builds the groups",
        fix="set ep-size to a divisor of tp-size, or leave it out",
        source="SGLang 0.5.23, srt/distributed/parallel_state.py (read, not run)",
        operator_only=True,
        overridable=True,
        shows={"tp": TP_SIZE, "ep": EP_SIZE},
    ),
)

RULES: Final = tuple(replace(rule, roles=ROLES) for rule in _RUNNERS)
RESOLVED: Final = (A2A_BACKEND, RUNNER_BACKEND, EP_SIZE)

"""LoRA adapters: how many, of which shape, and with what they cannot be combined."""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.attention import SPECULATES
from epd_operator.engines.sglang.base import IS_HIP
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.moe import A2A_BACKEND, QUANTIZATION, RUNNER_BACKEND
from epd_operator.engines.sglang.parallel import ATTN_DP_SIZE
from epd_operator.engines.sglang.switch import switch
from epd_operator.rules.expression import contains, named, size, some, starts
from epd_operator.rules.rule import ROLES, Rule

_SOURCE: Final = "SGLang 0.5.23, arg_groups/lora_hook.py"
_POLICY: Final = "SGLang 0.5.23, lora/marlin_lora_temp/policy.py"
_CHECK: Final = "lora_hook.check_lora_server_args"
_PATHS: Final = size(written("lora-paths"))
_MODULES: Final = written("lora-target-modules")
_PER_BATCH: Final = flag("max-loras-per-batch")
_LOADED: Final = written("max-loaded-loras")
_VERIFY: Final = env("SGLANG_RAGGED_VERIFY_MODE")
_DRAFT_RUNNER: Final = written("speculative-moe-runner-backend")
_NEW_KERNELS: Final = flag("lora-backend") == "triton_v2"
_RUNS_ADAPTERS: Final = starts(RUNNER_BACKEND, "lora")

ENABLE_LORA: Final = named(
    "enable_lora", flag("enable-lora").otherwise(_PATHS > 0), written("enable-lora"), written("lora-paths")
)
_IS_MARLIN: Final = flag("moe-runner-backend") == "experimental_sgl_marlin"

RULES: Final = (
    Rule(
        id="lora-batch-positive",
        when=_PER_BATCH <= 0,
        sides=(written("max-loras-per-batch"),),
        says="a batch holds at least one adapter, whether or not LoRA is on",
        fix="set max-loras-per-batch to 1 or more, or leave it out",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="lora-shape",
        when=ENABLE_LORA
        & some(
            (_PATHS == 0) & (~(size(_MODULES) > 0) | ~written("max-lora-rank").given | (written("max-lora-rank") == 0)),
            contains(_MODULES, "all") & (size(_MODULES) > 1),
        ),
        sides=(ENABLE_LORA, written("lora-paths"), written("max-lora-rank"), _MODULES),
        says="without a first adapter the engine must know max-lora-rank and lora-target-modules, in which all must be "
        "the only entry",
        fix="set lora-paths, or max-lora-rank and lora-target-modules",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="lora-counts",
        when=ENABLE_LORA
        & some(
            _LOADED < _PER_BATCH,
            _LOADED < _PATHS,
            (flag("enable-lora-overlap-loading") == True) & (~_LOADED.given | (_LOADED > _PER_BATCH * 2)),  # noqa: E712
            flag("lora-drain-wait-threshold") < 0.0,
        ),
        sides=(_LOADED, written("max-loras-per-batch"), written("lora-paths"), written("enable-lora-overlap-loading")),
        says="max-loaded-loras is at least max-loras-per-batch and the number of lora-paths, and with overlapped "
        "loading "
        "set and at most twice max-loras-per-batch; lora-drain-wait-threshold is not negative",
        fix="adjust max-loaded-loras to these, or leave it and enable-lora-overlap-loading out",
        source=_SOURCE,
        decided_by=_CHECK,
    ),
    Rule(
        id="lora-kernels",
        when=ENABLE_LORA
        & _NEW_KERNELS
        & some(
            ATTN_DP_SIZE > 1,
            flag("enable-pdmux"),
            flag("enable-two-batch-overlap"),
            switch("SGLANG_EXPERIMENTAL_LORA_OPTI"),
            IS_HIP,
        ),
        sides=(written("lora-backend"), ATTN_DP_SIZE, written("enable-pdmux")),
        says="the LoRA back end triton_v2 runs on NVIDIA GPUs, without attention DP, PD multiplexing, two-batch "
        "overlap or "
        "SGLANG_EXPERIMENTAL_LORA_OPTI",
        fix="leave lora-backend out",
        source=_SOURCE,
        decided_by="lora_hook._check_v2_lora_modes",
    ),
    Rule(
        id="lora-speculation",
        when=ENABLE_LORA
        & SPECULATES
        & some(
            _VERIFY.given & ~(_VERIFY == "static"),
            RUNNER_BACKEND == "experimental_sgl_trtllm",
            _DRAFT_RUNNER == "experimental_sgl_trtllm",
            switch("SGLANG_ENABLE_OVERLAP_PLAN_STREAM"),
        ),
        sides=(ENABLE_LORA, written("speculative-algorithm"), _VERIFY, RUNNER_BACKEND),
        says="LoRA with DSpark needs the verify mode static, and neither the MoE runner "
        "experimental_sgl_trtllm nor SGLANG_ENABLE_OVERLAP_PLAN_STREAM",
        fix="unset SGLANG_RAGGED_VERIFY_MODE and the others, or remove speculative-algorithm",
        source=_SOURCE,
        decided_by="lora_hook.check_lora_speculative_compatibility",
    ),
    Rule(
        id="lora-moe-runner",
        when=some(
            SPECULATES & starts(_DRAFT_RUNNER, "lora"),
            _RUNS_ADAPTERS
            & some(
                ~ENABLE_LORA,
                ~_NEW_KERNELS,
                QUANTIZATION.given & ~QUANTIZATION.isin(("fp8", "modelopt_fp4")),
                (QUANTIZATION == "modelopt_fp4") & ~(RUNNER_BACKEND == "lora_marlin"),
                ~(A2A_BACKEND == "none"),
                written("elastic-ep-join-mode").given,
                flag("enable-eplb"),
                ~(flag("init-expert-location") == "trivial"),
                flag("ep-num-redundant-experts") > 0,
            ),
        ),
        sides=(RUNNER_BACKEND, ENABLE_LORA, written("lora-backend"), A2A_BACKEND, _DRAFT_RUNNER),
        says="a MoE runner for adapters needs LoRA with lora-backend triton_v2, no MoE all-to-all and experts in their "
        "plain places, and cannot run a draft",
        fix="leave moe-runner-backend and speculative-moe-runner-backend out",
        source=_SOURCE,
        decided_by="lora_hook.check_lora_moe_runner_args",
    ),
    Rule(
        id="marlin-lora",
        when=_IS_MARLIN
        & some(
            (flag("ep-size") > 1) & ~(A2A_BACKEND == "none"),
            ENABLE_LORA
            & some(
                ~flag("lora-use-virtual-experts"),
                ~(flag("lora-backend") == "triton"),
                (flag("ep-size") > 1)
                & some(
                    ~(flag("init-expert-location") == "trivial"),
                    ~(flag("ep-num-redundant-experts") == 0),
                    flag("enable-eplb"),
                    written("elastic-ep-backend").given,
                    flag("enable-elastic-expert-backup"),
                ),
            ),
        ),
        sides=(written("moe-runner-backend"), ENABLE_LORA, written("lora-backend"), written("ep-size")),
        says="the MoE runner experimental_sgl_marlin needs lora-use-virtual-experts and lora-backend triton for LoRA, "
        "and "
        "for expert parallelism no all-to-all and experts in their plain places",
        fix="leave moe-runner-backend out",
        source=_POLICY,
        decided_by="policy.validate_experimental_sgl_marlin_server_args",
        roles=ROLES,
    ),
)
RESOLVED: Final = (ENABLE_LORA,)

"""State-space and diffusion decoding: flags that DeepSeek-V4.1 does not need, and that are checked all the same."""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.base import IS_CUDA, IS_HIP, IS_SM100
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.rules.expression import some
from epd_operator.rules.rule import ROLES, Rule

_SOURCE: Final = "SGLang 0.5.23, arg_groups/mamba_hook.py"
_DECIDES: Final = "mamba_hook.handle_mamba_backend"

RULES: Final = (
    Rule(
        id="mamba-ranges",
        when=some(
            flag("mamba-cache-philox-rounds") < 0,
            flag("mamba-max-states-per-path") == 0,
            flag("mamba-max-states-per-path") < -1,
        ),
        sides=(written("mamba-cache-philox-rounds"), written("mamba-max-states-per-path")),
        says="rounds cannot be negative, and the states of a path are -1 (no limit) or at least 1",
        fix="remove both: DeepSeek-V4.1 has no Mamba layers",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="mamba-stochastic-rounding",
        when=flag("enable-mamba-cache-stochastic-rounding")
        & some(
            ~(written("mamba-ssm-dtype") == "float16"),
            ~IS_CUDA,
            (flag("mamba-backend") == "triton") & ~IS_SM100,
        ),
        sides=(written("enable-mamba-cache-stochastic-rounding"), written("mamba-ssm-dtype")),
        says="stochastic rounding needs mamba-ssm-dtype float16 on an NVIDIA GPU, and SM100 with the triton back end",
        fix="remove enable-mamba-cache-stochastic-rounding: DeepSeek-V4.1 has no Mamba layers",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="mamba-flashinfer-hardware",
        when=(flag("mamba-backend") == "flashinfer") & IS_HIP,
        sides=(written("mamba-backend"),),
        says="the flashinfer kernels run on NVIDIA GPUs",
        fix="remove mamba-backend: DeepSeek-V4.1 has no Mamba layers",
        source=_SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        id="mamba-int8-checkpoint",
        when=flag("enable-int8-mamba-checkpoint")
        & some(flag("enable-hierarchical-cache"), written("radix-cache-backend").given, flag("enable-lmcache")),
        sides=(written("enable-int8-mamba-checkpoint"), written("enable-hierarchical-cache")),
        says="int8 checkpoints of Mamba state are known to the built-in radix cache only",
        fix="remove enable-int8-mamba-checkpoint: DeepSeek-V4.1 has no Mamba layers",
        source=_SOURCE,
        decided_by="mamba_hook.handle_int8_mamba_checkpoint",
        roles=ROLES,
    ),
    Rule(
        id="diffusion-decoding",
        when=written("dllm-algorithm").given,
        sides=(written("dllm-algorithm"),),
        says="diffusion decoding is for diffusion language models, and DeepSeek-V4.1 is not one",
        fix="remove dllm-algorithm",
        source="SGLang 0.5.23, arg_groups/dllm_hook.py",
        decided_by="algorithm.get_algorithm_cls",
        roles=ROLES,
    ),
)
RESOLVED: Final = ()

"""State-space and diffusion decoding: flags that DeepSeek-V4.1 does not need, and that are checked all the same."""

from __future__ import annotations

from typing import Final

from epd_operator.engines.expression import some
from epd_operator.engines.rule import ROLES, Rule
from epd_operator.engines.sglang.base import IS_CUDA, IS_HIP, IS_SM100
from epd_operator.engines.sglang.given import flag, written

_SOURCE: Final = "SGLang 0.5.23, arg_groups/mamba_hook.py"
_DECIDES: Final = "mamba_hook.handle_mamba_backend"

RULES: Final = (
    Rule(
        "mamba-ranges",
        some(
            flag("mamba-cache-philox-rounds") < 0,
            flag("mamba-max-states-per-path") == 0,
            flag("mamba-max-states-per-path") < -1,
        ),
        (written("mamba-cache-philox-rounds"), written("mamba-max-states-per-path")),
        "rounds cannot be negative, and the states of a path are -1 (no limit) or at least 1",
        "remove both: DeepSeek-V4.1 has no Mamba layers",
        _SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        "mamba-stochastic-rounding",
        flag("enable-mamba-cache-stochastic-rounding")
        & some(
            ~(written("mamba-ssm-dtype") == "float16"),
            ~IS_CUDA,
            (flag("mamba-backend") == "triton") & ~IS_SM100,
        ),
        (written("enable-mamba-cache-stochastic-rounding"), written("mamba-ssm-dtype")),
        "stochastic rounding needs mamba-ssm-dtype float16 on an NVIDIA GPU, and SM100 with the triton back end",
        "remove enable-mamba-cache-stochastic-rounding: DeepSeek-V4.1 has no Mamba layers",
        _SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        "mamba-flashinfer-hardware",
        (flag("mamba-backend") == "flashinfer") & IS_HIP,
        (written("mamba-backend"),),
        "the flashinfer kernels run on NVIDIA GPUs",
        "remove mamba-backend: DeepSeek-V4.1 has no Mamba layers",
        _SOURCE,
        decided_by=_DECIDES,
        roles=ROLES,
    ),
    Rule(
        "mamba-int8-checkpoint",
        flag("enable-int8-mamba-checkpoint")
        & some(flag("enable-hierarchical-cache"), written("radix-cache-backend").given, flag("enable-lmcache")),
        (written("enable-int8-mamba-checkpoint"), written("enable-hierarchical-cache")),
        "int8 checkpoints of Mamba state are known to the built-in radix cache only",
        "remove enable-int8-mamba-checkpoint: DeepSeek-V4.1 has no Mamba layers",
        _SOURCE,
        decided_by="mamba_hook.handle_int8_mamba_checkpoint",
        roles=ROLES,
    ),
    Rule(
        "diffusion-decoding",
        written("dllm-algorithm").given,
        (written("dllm-algorithm"),),
        "diffusion decoding is for diffusion language models, and DeepSeek-V4.1 is none",
        "remove dllm-algorithm",
        "SGLang 0.5.23, arg_groups/dllm_hook.py",
        decided_by="algorithm.get_algorithm_cls",
        roles=ROLES,
    ),
)
RESOLVED: Final = ()

"""What every other module starts from: the hardware, the role, the checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines.sglang.flags import flag
from epd_operator.rules.expression import PLATFORM, ROLE, model_of, named, spec_of, starts, when

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.rules.expression import Value

IS_CUDA: Final = starts(PLATFORM, "cuda")
IS_HIP: Final = starts(PLATFORM, "hip")
IS_SM100: Final = PLATFORM == "cuda-sm100"
REHEARSAL: Final = "cpu"
"""The platform on which the plugin lets the engine run without a GPU, to try a deployment out."""
IS_REHEARSAL: Final = PLATFORM == REHEARSAL
_CUDA_TO_V41: Final = ("cuda-sm90", "cuda-sm100", REHEARSAL)
IS_CUDA_TO_V41: Final = PLATFORM.isin(_CUDA_TO_V41)
"""Whether the checks of DeepSeek-V4.1 take the machine for one with NVIDIA GPUs: without a GPU the plugin answers them,
and them alone, that it is. Source: SGLang 0.5.23, arg_groups/deepseek_v4_hook.py, get_platform()."""
GPU_MEMORY_GIB: Final = when(PLATFORM == "cuda-sm90", 141, when(PLATFORM == "cuda-sm100", 180, 288))
"""Memory of one GPU as the rules were run: H200, B200, MI355X."""

MODE: Final = named("disaggregation_mode", flag("disaggregation-mode"), flag("disaggregation-mode"))
IS_PREFILL: Final = MODE == "prefill"
IS_DECODE: Final = MODE == "decode"
IS_PD: Final = ~(MODE == "null")
IS_ENCODER: Final = flag("encoder-only") | (ROLE == "encode")
ON_A_SPEC: Final = spec_of("engine.type", "str").given
"""A bare command line says nothing about the pod around it."""

IS_V41: Final = model_of("model_type", "str") == "deepseek_v41"
DRAFT_BLOCK: Final = model_of("dspark_block_size", "int")
"""Block size of the draft that the checkpoint bundles; absent when it bundles none."""

CHECKPOINT: Final[Mapping[str, Value]] = {
    "model_type": "deepseek_v41",
    "dspark_block_size": 5,
    "context_length": 1_048_576,
    "o_groups": 8,
}
"""Facts of the released DeepSeek-V4.1-Flash checkpoint that rules read. Source: its config.json."""


def checkpoint(config: Mapping[str, object]) -> Mapping[str, Value]:
    """The same facts of another config.json, given as the fields that differ from the released one's.

    Args:
        config: Top-level fields of config.json; None removes one; `text_config` replaces the whole of it.
    """
    text = config.get("text_config", {})
    inner = text if isinstance(text, dict) else config
    facts = dict(CHECKPOINT)
    if isinstance(model_type := config.get("model_type"), str):
        facts["model_type"] = model_type
    if "text_config" in config:
        names = {
            "dspark_block_size": "dspark_block_size",
            "context_length": "max_position_embeddings",
            "o_groups": "o_groups",
        }
        for fact, name in names.items():
            value = inner.get(name)
            facts[fact] = value if isinstance(value, int) else None
    return facts

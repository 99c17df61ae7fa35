"""DeepSeek-V4.1 as a whole: what the engine cannot do with this model under any flags."""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.base import IS_CUDA, IS_HIP, IS_V41
from epd_operator.engines.sglang.cache import DISABLE_RADIX_CACHE
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.moe import QUANTIZATION
from epd_operator.engines.sglang.parallel import PP_SIZE
from epd_operator.engines.sglang.switch import switch
from epd_operator.rules.expression import PLATFORM, every, model_of, named
from epd_operator.rules.rule import ROLES, Rule

_SOURCE: Final = "SGLang 0.5.23, arg_groups/deepseek_v4_hook.py"
_HOOK: Final = "SGLang 0.5.23, arg_groups/model_hook.py"
_CONFIG: Final = "SGLang 0.5.23, configs/model_config.py"
_FEATURES: Final = "deepseek_v4_hook.validate_deepseek_v41_features"
_TEXT_ONLY: Final = "model_hook.handle_language_model_only"
_READ: Final = ("dsv41-2026-09", "0.5.23")

RETURN_HIDDEN_STATES: Final = named(
    "enable_return_hidden_states",
    flag("enable-return-hidden-states") | written("return-hidden-states-mode").given,
    written("enable-return-hidden-states"),
    written("return-hidden-states-mode"),
)
"""Whether hidden states go back to clients. Source: SGLang 0.5.23, arg_groups/serving_hook.py."""

_LONGEST: Final = model_of("context_length", "int")
CONTEXT_LENGTH: Final = named(
    "context_length", flag("context-length").otherwise(_LONGEST), written("context-length"), _LONGEST
)
"""Longest request in tokens."""

_LOADS: Final = (
    (QUANTIZATION == "fp8")
    | every(IS_CUDA, QUANTIZATION.isin(("modelopt_fp4", "nvfp4_online", "humming", "quark_mxfp4")))
    | every(IS_HIP, QUANTIZATION == "quark_mxfp4")
)
_LAYOUT: Final = env("SGLANG_HACK_FLASHMLA_BACKEND")
_MAMBA: Final = written("mamba-radix-cache-strategy")


def _lacks(feature: str, name: str, label: str) -> Rule:
    """DeepSeek-V4.1 does not have a feature that one flag turns on."""
    return Rule(
        id=f"model-{feature}",
        when=IS_V41 & flag(name),
        sides=(written(name),),
        says=f"DeepSeek-V4.1 has no {label}",
        fix=f"remove {name}",
        source=_SOURCE,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    )


def _text_only(name: str) -> Rule:
    """Serving text only excludes a flag about images."""
    return Rule(
        id=f"language-model-only-{name}",
        when=flag("language-model-only") & flag(name).otherwise(False),
        sides=(written("language-model-only"), written(name)),
        says="a text-only server has no vision tower",
        fix=f"remove {name} or language-model-only",
        source=f"{_HOOK}, handle_language_model_only",
        decided_by=_TEXT_ONLY,
        roles=ROLES,
    )


_FEATURE_RULES: Final = (
    Rule(
        id="model-pipeline-parallel",
        when=IS_V41 & (PP_SIZE > 1),
        sides=(PP_SIZE,),
        says="DeepSeek-V4.1 has no pipeline parallelism",
        fix="set pp-size to 1 and spread the model by tp-size",
        source=_SOURCE,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    _lacks("two-batch-overlap", "enable-two-batch-overlap", "two-batch overlap"),
    _lacks("hisparse", "enable-hisparse", "HiSparse"),
    Rule(
        id="model-unified-kv",
        when=every(IS_V41, IS_HIP, _LAYOUT == "unified_kv_triton"),
        sides=(_LAYOUT, PLATFORM),
        says="DeepSeek-V4.1 has no unified KV layout",
        fix="remove SGLANG_HACK_FLASHMLA_BACKEND",
        source=_SOURCE,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    *(
        _text_only(name)
        for name in (
            "encoder-only",
            "language-only",
            "enable-prefix-mm-cache",
            "enable-broadcast-mm-inputs-process",
            "mm-enable-dp-encoder",
        )
    ),
)

_CHECKPOINT_RULES: Final = (
    Rule(
        id="model-context-length",
        when=every(
            flag("context-length") > _LONGEST,
            ~switch("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"),
            ~switch("SGLANG_IS_IN_CI"),
        ),
        sides=(CONTEXT_LENGTH, _LONGEST),
        says="the model was trained for requests of {longest} tokens, and longer ones give wrong output",
        fix="set context-length to at most {longest} or leave it out",
        source=f"{_CONFIG}, _derive_context_length",
        decided_by="model_config._derive_context_length",
        roles=ROLES,
        shows={"longest": _LONGEST},
    ),
    Rule(
        id="model-quantization",
        when=QUANTIZATION.given & ~_LOADS,
        sides=(QUANTIZATION, PLATFORM),
        says="the checkpoint is quantized as fp8 with FP4 experts, and is not loaded as {quantization}",
        fix="remove quantization",
        source=f"{_CONFIG}, _verify_quantization",
        decided_by="model_config._verify_quantization",
        roles=ROLES,
        shows={"quantization": QUANTIZATION},
    ),
    Rule(
        id="model-config-parser",
        when=~flag("model-config-parser").isin(("auto", "hf", "mistral")),
        sides=(written("model-config-parser"),),
        says="config.json is read by auto, hf or mistral; others come with a plugin, and the released images hold none",
        fix="remove model-config-parser, or acknowledge this rule for an image that holds such a plugin",
        source="SGLang 0.5.23, configs/model_config_parser_registry.py",
        decided_by="model_config_parser_registry.get_model_config_parser",
        roles=ROLES,
        overridable=True,
    ),
    Rule(
        id="model-quantize-and-serve",
        when=flag("quantize-and-serve"),
        sides=(written("quantize-and-serve"),),
        says="this engine does not quantize while it starts to serve",
        fix="remove quantize-and-serve",
        source=f"{_CONFIG}, _validate_quantize_and_serve_config",
        decided_by="model_config._validate_quantize_and_serve_config",
        roles=ROLES,
    ),
)

_FOREIGN: Final = (
    Rule(
        id="model-dsa-cache-split",
        when=flag("enable-dsa-cache-layer-split"),
        sides=(written("enable-dsa-cache-layer-split"),),
        says="the layers of a DSA cache can be split, and DeepSeek-V4.1 has no DSA",
        fix="remove enable-dsa-cache-layer-split",
        source=_HOOK,
        decided_by="model_hook.handle_model_specific_adjustments",
        roles=ROLES,
    ),
    Rule(
        id="model-mamba-cache-strategy",
        when=_MAMBA.isin(("extra_buffer", "extra_buffer_lazy")) & ~DISABLE_RADIX_CACHE,
        sides=(_MAMBA,),
        says="extra buffers hold Mamba state, and DeepSeek-V4.1 has none",
        fix="remove mamba-radix-cache-strategy",
        source=f"{_HOOK}, handle_mamba_radix_cache",
        decided_by="model_hook.handle_mamba_radix_cache",
        roles=ROLES,
    ),
    Rule(
        id="model-layernorm-parallel",
        when=flag("enable-layernorm-sp"),
        sides=(written("enable-layernorm-sp"),),
        says="sequence-parallel layer norms exist for a few other models",
        fix="remove enable-layernorm-sp",
        source="SGLang 0.5.23, arg_groups/layernorm_sp_hook.py",
        decided_by="layernorm_sp_hook.validate_layernorm_sp",
        roles=ROLES,
    ),
    Rule(
        id="model-layernorm-parallel-megamoe",
        when=flag("enable-megamoe-for-layernorm-sp") & ~flag("enable-layernorm-sp"),
        sides=(written("enable-megamoe-for-layernorm-sp"),),
        says="it goes with enable-layernorm-sp, which DeepSeek-V4.1 does not have",
        fix="remove enable-megamoe-for-layernorm-sp",
        source="SGLang 0.5.23, arg_groups/layernorm_sp_hook.py",
        decided_by="layernorm_sp_hook.handle_layernorm_sp",
        roles=ROLES,
    ),
    *(
        Rule(
            id=f"model-{kernel}",
            when=flag(f"enable-{kernel}"),
            sides=(written(f"enable-{kernel}"),),
            says="whole-model kernels come with a plugin that registers this model; the released images hold none",
            fix=f"remove enable-{kernel}, or acknowledge this rule for an image that holds such a plugin",
            source=f"SGLang 0.5.23, kernel_plugins/{vendor}/binding.py",
            decided_by=f"binding.handle_{kernel.replace('-', '_')}",
            roles=ROLES,
            overridable=True,
        )
        for kernel, vendor in (("nvidia-megakernel", "nvidia"), ("amd-monokernel", "amd"))
    ),
)

RULES: Final = (*_FEATURE_RULES, *_CHECKPOINT_RULES, *_FOREIGN)
RESOLVED: Final = (RETURN_HIDDEN_STATES,)

"""Lets the engine's own check of encoder and language servers accept DeepSeek-V4.1, and refuses what cannot work.

The engine has a list of architectures. Around its own check, ours goes by a name on that list, so that everything else
it says stays its own. Source: SGLang 0.5.23, srt/arg_groups/pd_disaggregation_hook.py, handle_encoder_disaggregation.
"""

# ruff: noqa: PLC0415  (the engine's modules are there when the check runs, and are not to be loaded before)
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from epd_sglang.late import after_import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

STEP: Final = "handle_encoder_disaggregation"
MODEL_TYPE: Final = "deepseek_v41"
_LISTED: Final = "MiniMaxM3SparseForConditionalGeneration"
MODELS: Final = "epd_sglang.encode.models"
_SAFE_WITH_DP: Final = "zmq_to_tokenizer"
_NO_ALL_TO_ALL: Final = frozenset({"none", "megamoe"})


def open_gate() -> None:
    """Register our side of the check. The last step: a failure before it leaves the engine's own refusal."""
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook

    register_resolution_hook(STEP)(widened)


def widened(server_args: Any, previous: Callable[[Any], None]) -> None:
    """The engine's check, for an encoder or a language server of DeepSeek-V4.1 under another name.

    Raises:
        ValueError: What the engine refuses, or what cannot work with the encode tier; every reason.
    """
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view

    cfg = resolving_view(server_args)
    hf = model_config_of(server_args).hf_config if cfg.encoder_only or cfg.language_only else None
    if hf is None or hf.model_type != MODEL_TYPE or not getattr(hf, "vision_n_layers", 0):
        previous(server_args)
        return
    if cfg.language_only and (faults := list(language_faults(cfg, attention_dp=_attention_dp(server_args)))):
        raise ValueError("plugin epd: --language-only of DeepSeek-V4.1: " + "; ".join(faults))
    if cfg.encoder_only:
        _use_encoder_model()
    kept, hf.architectures = hf.architectures, [_LISTED]
    try:
        previous(server_args)
    finally:
        hf.architectures = kept


def language_faults(cfg: Any, *, attention_dp: bool) -> Iterator[str]:
    """Why a language server cannot work with the encode tier.

    Args:
        cfg: The engine's arguments, as far as they are resolved.
        attention_dp: Whether attention is data parallel.
    """
    if cfg.disaggregation_mode == "decode":
        yield "belongs on prefill; decode takes no part in encoding, so leave it out there"
    if cfg.enable_adaptive_dispatch_to_encoder:
        yield "has no tower that --enable-adaptive-dispatch-to-encoder could fall back on"
    if cfg.tokenizer_worker_num > 1:
        yield f"--tokenizer-worker-num is {cfg.tokenizer_worker_num}: such workers load no plugins, use 1"
    if attention_dp and cfg.encoder_transfer_backend != _SAFE_WITH_DP:
        yield (
            f"with attention DP --encoder-transfer-backend must be {_SAFE_WITH_DP}, not "
            f"{cfg.encoder_transfer_backend}: ranks would wait for each other without end"
        )
    if cfg.enable_prefill_cp or cfg.attn_cp_size != 1:
        yield "pictures cannot be placed with prefill context parallelism"
    if cfg.pp_size != 1:
        yield f"pictures cannot be placed with pipeline parallelism (--pp-size {cfg.pp_size})"
    if cfg.moe_a2a_backend not in _NO_ALL_TO_ALL:
        yield f"--moe-a2a-backend is {cfg.moe_a2a_backend}: must be none or megamoe"


def _attention_dp(server_args: Any) -> bool:
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.runtime_context import attn_dp_enabled_of

    return bool(attn_dp_enabled_of(resolved_view(server_args)))


def _use_encoder_model() -> None:
    """In this process and in the encoder's own workers, which load no plugins but inherit the environment."""
    os.environ["SGLANG_EXTERNAL_MODEL_PACKAGE"] = MODELS

    def register(module: ModuleType) -> None:
        module.ModelRegistry.models.update(module.import_model_classes(MODELS))

    after_import("sglang.srt.models.registry", register)

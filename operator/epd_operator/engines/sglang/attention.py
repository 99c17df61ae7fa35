"""Attention: which back ends run, in what KV dtype and page size, and what each of them cannot do.

The tricky idea: DeepSeek-V4.1 is always served by the back end `dsv4`, regardless of `--attention-backend`, and
`--dsv4-attn-backend` picks the kernels inside it. Only the two per-phase flags, given alike, replace `dsv4` later on;
by then the features of the model were judged with it.
"""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang import linear
from epd_operator.engines.sglang.base import IS_HIP, IS_PD, IS_REHEARSAL, IS_SM100, IS_V41, MODE
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.parallel import (
    ATTN_CP_SIZE,
    ATTN_CP_SIZE_ASKED,
    ATTN_DP_SIZE_ASKED,
    DCP_SIZE,
    PREFILL_CP,
    TP_SIZE,
)
from epd_operator.rules.expression import PLATFORM, Expr, every, lower, named, some, when
from epd_operator.rules.rule import ROLES, Rule

_SOURCE: Final = "SGLang 0.5.23, arg_groups/deepseek_v4_hook.py"
_HOOK: Final = "SGLang 0.5.23, arg_groups/attention_hook.py"
_POOL: Final = "SGLang 0.5.23, mem_cache/deepseek_v4_memory_pool.py (read, not run)"
_OVERRIDES: Final = "SGLang 0.5.23, arg_groups/overrides.py"
_READ: Final = ("dsv41-2026-09", "0.5.23")
_DEFAULTS: Final = "deepseek_v4_hook.apply_deepseek_v4_defaults"
_COMPATIBILITY: Final = "attention_hook.handle_attention_backend_compatibility"
_BACK_TO_DSV4: Final = "leave out prefill-attention-backend and decode-attention-backend, so that dsv4 runs"

SPECULATES: Final = written("speculative-algorithm").given & ~flag("enable-return-aux-hidden-states")

_ASKED: Final = written("attention-backend")
_PREFILL: Final = written("prefill-attention-backend")
_DECODE: Final = written("decode-attention-backend")
_DRAFT: Final = written("speculative-draft-attention-backend")
_PREFILLS: Final = when(_PREFILL == "compressed", "dsv4", when(_PREFILL == "tokenspeed_mla", "trtllm_mla", _PREFILL))
_DECODES: Final = when(_DECODE == "compressed", "dsv4", when(_DECODE == "tokenspeed_mla", "cutedsl_mla", _DECODE))
"""The per-phase flags with retired names read as the ones that took their place (serving_hook.py)."""

KV_CACHE_DTYPE: Final = named(
    "kv_cache_dtype",
    when(
        (flag("kv-cache-dtype") == "auto") | some(*(leaf == "tokenspeed_mla" for leaf in (_ASKED, _DECODE))),
        "fp8_e4m3",
        flag("kv-cache-dtype"),
    ),
    written("kv-cache-dtype"),
    _DECODE,
)

_LAYOUT: Final = env("SGLANG_DSV4_KV_LAYOUT")
_TP_ATTENTION: Final = ~PREFILL_CP & (TP_SIZE // ATTN_DP_SIZE_ASKED // ATTN_CP_SIZE_ASKED > 1)
DSV4_ATTN_BACKEND: Final = named(
    "dsv4_attn_backend",
    when(
        ~(flag("dsv4-attn-backend") == "auto"),
        flag("dsv4-attn-backend"),
        when(
            IS_V41
            & IS_SM100
            & (KV_CACHE_DTYPE == "fp8_e4m3")
            & (IS_PD | ~_TP_ATTENTION)
            & (~_LAYOUT.given | lower(_LAYOUT).isin(("auto", "v41", "v41_new"))),
            "flashmla_mega",
            "flashmla",
        ),
    ),
    written("dsv4-attn-backend"),
)
IS_TRTLLM: Final = DSV4_ATTN_BACKEND == "trtllm"
IS_MEGA: Final = DSV4_ATTN_BACKEND == "flashmla_mega"
# Without a GPU the plugin stands in for the kernels, and reads the packed layout alone.
_LAYOUT_ASKED: Final = lower(_LAYOUT).otherwise(when(IS_REHEARSAL, "v41", "v4"))
_PACKS: Final = some(
    IS_SM100,
    IS_REHEARSAL,
    IS_HIP & env("SGLANG_HACK_FLASHMLA_BACKEND").otherwise("auto").isin(("auto", "aiter_sparse")),
)
"""Whether the attention kernels of this GPU read the packed layouts of DeepSeek-V4.1."""
_COMPRESSED: Final = lower(env("SGLANG_DSV4_COMPRESSED_KV_LAYOUT"))
_IGNORED: Final = every(~IS_MEGA, ~IS_TRTLLM, _LAYOUT_ASKED == "auto", ~_PACKS)
"""Whether nobody looks at the layout of compressed pages."""
KV_LAYOUT: Final = named(
    "kv_layout",
    when(
        IS_MEGA,
        when(_LAYOUT_ASKED == "v41_new", "v41_new", "v41"),
        when(
            IS_TRTLLM | ((_LAYOUT_ASKED == "auto") & ~_PACKS),
            "v4",
            when(_LAYOUT_ASKED == "auto", "v41", _LAYOUT_ASKED),
        ),
    ),
    _LAYOUT,
    written("dsv4-attn-backend"),
)
"""How pages of the main cache are laid out. Source: SGLang 0.5.23, mem_cache/deepseek_v4_memory_pool.py."""

ATTENTION_BACKEND: Final = named(
    "attention_backend",
    when(_PREFILLS.given & (_PREFILLS == _DECODES), _PREFILLS, "dsv4"),
    _PREFILL,
    _DECODE,
    _ASKED,
)
PREFILL_ATTENTION_BACKEND: Final = named(
    "prefill_attention_backend_used",
    when(_PREFILLS.given, _PREFILLS, when(_DECODES == "cutedsl_mla", "trtllm_mla", ATTENTION_BACKEND)),
    _PREFILL,
)
DECODE_ATTENTION_BACKEND: Final = named(
    "decode_attention_backend_used", when(_DECODES.given, _DECODES, ATTENTION_BACKEND), _DECODE
)


def _either(*backends: str) -> Expr:
    return _PREFILLS.isin(backends) | _DECODES.isin(backends)


PAGE_SIZE: Final = named(
    "page_size",
    when(
        IS_SM100 & _either("fa4") & ~(flag("speculative-eagle-topk") > 1),
        128,
        when(
            (_DECODES.isin(("flashmla", "trtllm_mla")))
            | _either("cutedsl_mla", "trtllm_mha", "hpc_ops")
            | (_DRAFT == "trtllm_mha"),
            64,
            when(_either("intel_xpu"), 128, 256),
        ),
    ),
    written("page-size"),
    _DECODE,
    _PREFILL,
)
"""Tokens a page: 256 regardless of `--page-size`, unless a per-phase back end insists on its own.

Source: SGLang 0.5.23, arg_groups/model_overrides/deepseek_v4.py and overrides.py."""

IS_DETERMINISTIC: Final = named(
    "enable_deterministic_inference",
    flag("enable-deterministic-inference") | written("rl-on-policy-target").given,
    written("enable-deterministic-inference"),
    written("rl-on-policy-target"),
)
_KERNELS: Final = (
    Rule(
        id="attention-kv-dtype",
        when=~KV_CACHE_DTYPE.isin(("fp8_e4m3", "bfloat16")),
        sides=(KV_CACHE_DTYPE,),
        says="DeepSeek-V4 keeps its KV cache in fp8_e4m3 or bfloat16, not in {dtype}",
        fix="set kv-cache-dtype to fp8_e4m3 or bfloat16, or leave it out",
        source=f"{_OVERRIDES}, _deepseek_v4_kv_cache_dtype",
        decided_by="overrides._deepseek_v4_kv_cache_dtype",
        roles=ROLES,
        shows={"dtype": KV_CACHE_DTYPE},
    ),
    Rule(
        id="attention-mega-hardware",
        when=IS_MEGA & ~(IS_V41 & IS_SM100),
        sides=(DSV4_ATTN_BACKEND, PLATFORM),
        says="flashmla_mega runs DeepSeek-V4.1 on SM100 GPUs only",
        fix="leave dsv4-attn-backend out, or set it to flashmla",
        source=_SOURCE,
        decided_by=_DEFAULTS,
        roles=ROLES,
    ),
    Rule(
        id="attention-trtllm-hardware",
        when=IS_TRTLLM & ~IS_SM100,
        sides=(DSV4_ATTN_BACKEND, PLATFORM),
        says="TRT-LLM attention needs an SM100 GPU",
        fix="leave dsv4-attn-backend out, or set it to flashmla",
        source=_SOURCE,
        decided_by=_DEFAULTS,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        id="attention-trtllm-kv-dtype",
        when=IS_TRTLLM & (KV_CACHE_DTYPE == "bfloat16"),
        sides=(DSV4_ATTN_BACKEND, KV_CACHE_DTYPE),
        says="TRT-LLM attention keeps its KV cache in fp8_e4m3 only",
        fix="set kv-cache-dtype to fp8_e4m3 or leave it out, or set dsv4-attn-backend to flashmla",
        source=_SOURCE,
        decided_by=_DEFAULTS,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        id="attention-trtllm-hisparse",
        when=IS_TRTLLM & flag("enable-hisparse"),
        sides=(DSV4_ATTN_BACKEND, written("enable-hisparse")),
        says="TRT-LLM attention has no HiSparse",
        fix="remove enable-hisparse; DeepSeek-V4.1 cannot use it with any back end",
        source=_SOURCE,
        decided_by=_DEFAULTS,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        id="attention-trtllm-context-parallel",
        when=IS_TRTLLM & some(ATTN_CP_SIZE_ASKED > 1, DCP_SIZE > 1, PREFILL_CP),
        sides=(DSV4_ATTN_BACKEND, PREFILL_CP, ATTN_CP_SIZE_ASKED, DCP_SIZE),
        says="TRT-LLM attention has no context parallelism of any kind",
        fix="remove enable-prefill-cp, attn-cp-size and dcp-size, or set dsv4-attn-backend to flashmla",
        source=_SOURCE,
        decided_by=_DEFAULTS,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        id="attention-trtllm-disaggregation",
        when=IS_TRTLLM & IS_PD,
        sides=(DSV4_ATTN_BACKEND, MODE),
        says="the KV layout of TRT-LLM attention has not been moved between prefill and decode pods yet",
        fix="leave dsv4-attn-backend out, or set it to flashmla on both roles",
        source=_SOURCE,
        decided_by=_DEFAULTS,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        id="attention-trtllm-chunked-prefill",
        when=IS_TRTLLM & (flag("chunked-prefill-size") < 1),
        sides=(DSV4_ATTN_BACKEND, written("chunked-prefill-size")),
        says="TRT-LLM attention sizes a buffer by the prefill chunk, so prefill must be chunked",
        fix="set chunked-prefill-size to a positive number or leave it out",
        source=_SOURCE,
        decided_by=_DEFAULTS,
        roles=ROLES,
        stated=_READ,
    ),
)

_LAYOUT_UNKNOWN: Final = every(~IS_MEGA, ~_LAYOUT_ASKED.isin(("v4", "v41", "v41_new", "auto")))
_LAYOUT_UNREAD: Final = some(
    IS_TRTLLM & _LAYOUT_ASKED.isin(("v41", "v41_new")),
    every(~IS_TRTLLM, ~IS_MEGA, _LAYOUT_ASKED == "v41", ~_PACKS),
    every(~IS_TRTLLM, ~IS_MEGA, _LAYOUT_ASKED == "v41_new", ~IS_SM100),
)
KV_LAYOUT_WORKS: Final = ~(_LAYOUT_UNKNOWN | _LAYOUT_UNREAD)
"""Whether a server with this layout would come up at all."""

_LAYOUTS: Final = (
    Rule(
        id="kv-layout-unknown",
        when=_LAYOUT_UNKNOWN,
        sides=(_LAYOUT,),
        says="pages are laid out as v4, v41, v41_new or auto; the engine checks it only after the weights are loaded, "
        "and stops",
        fix="set SGLANG_DSV4_KV_LAYOUT to one of these, or remove it",
        source=_POOL,
        operator_only=True,
        overridable=True,
    ),
    Rule(
        id="kv-layout-compressed",
        when=some(
            every(_COMPRESSED.given, ~_COMPRESSED.isin(("auto", "fp8", "fp4")), ~_IGNORED),
            every(_COMPRESSED == "fp4", ~IS_MEGA, (_LAYOUT_ASKED == "v4") | IS_TRTLLM),
        ),
        sides=(env("SGLANG_DSV4_COMPRESSED_KV_LAYOUT"), KV_LAYOUT),
        says="compressed pages are laid out as auto, fp8 or, beside the main layouts v41 and v41_new, fp4; the engine "
        "checks it only after the weights are loaded, and stops",
        fix="set SGLANG_DSV4_COMPRESSED_KV_LAYOUT to auto or fp8, or remove it",
        source=_POOL,
        operator_only=True,
        overridable=True,
    ),
    Rule(
        id="kv-layout-hardware",
        when=_LAYOUT_UNREAD,
        sides=(_LAYOUT, DSV4_ATTN_BACKEND, PLATFORM),
        says="the packed layout {layout} is read by FlashMLA on SM100 and, v41 only, by aiter on gfx950; the engine "
        "checks it only after the weights are loaded, and stops",
        fix="remove SGLANG_DSV4_KV_LAYOUT, or set it to auto",
        source=_POOL,
        operator_only=True,
        overridable=True,
        shows={"layout": _LAYOUT_ASKED},
    ),
)

_PHASES: Final = (
    Rule(
        id="attention-deterministic",
        when=IS_DETERMINISTIC,
        sides=(IS_DETERMINISTIC,),
        says="deterministic inference runs on a few attention back ends, and dsv4, the one of this model, is not among "
        "them",
        fix="remove enable-deterministic-inference and rl-on-policy-target",
        source=f"{_OVERRIDES}, _deterministic_attention_backend",
        decided_by="overrides._deterministic_attention_backend",
        roles=ROLES,
    ),
    Rule(
        id="attention-flex-speculation",
        when=(ATTENTION_BACKEND == "flex_attention") & SPECULATES,
        sides=(ATTENTION_BACKEND, written("speculative-algorithm")),
        says="flex_attention has no speculative decoding",
        fix=_BACK_TO_DSV4,
        source=_HOOK,
        decided_by=_COMPATIBILITY,
        roles=ROLES,
    ),
    Rule(
        id="attention-decode-trtllm-mla",
        when=(_DECODES == "trtllm_mla") & ~(IS_SM100 & (KV_CACHE_DTYPE == "fp8_e4m3")),
        sides=(_DECODE, KV_CACHE_DTYPE, PLATFORM),
        says="trtllm_mla decodes on SM100 GPUs with an fp8_e4m3 KV cache",
        fix=_BACK_TO_DSV4,
        source=f"{_OVERRIDES}, _mla_kv_cache_dtype_checks",
        decided_by="overrides._mla_kv_cache_dtype_checks",
        roles=ROLES,
    ),
    Rule(
        id="attention-cutedsl-mla",
        when=(_PREFILLS == "cutedsl_mla") | ((_DECODES == "cutedsl_mla") & ~IS_SM100),
        sides=(_PREFILL, _DECODE, PLATFORM),
        says="cutedsl_mla decodes on SM100 GPUs and does nothing else",
        fix=_BACK_TO_DSV4,
        source=f"{_OVERRIDES}, _cutedsl_prefill_backend_fill",
        decided_by="overrides._cutedsl_prefill_backend_fill",
        roles=ROLES,
    ),
    Rule(
        id="attention-trtllm-mha",
        when=some(
            _either("trtllm_mha") & IS_HIP,
            every(_PREFILLS == "trtllm_mha", ~IS_SM100, ATTN_CP_SIZE > 1),
        ),
        sides=(_PREFILL, _DECODE, PLATFORM, ATTN_CP_SIZE),
        says="trtllm_mha runs on NVIDIA GPUs, and with context parallelism it prefills on SM100 only",
        fix=_BACK_TO_DSV4,
        source=_HOOK,
        decided_by=_COMPATIBILITY,
        roles=ROLES,
    ),
    Rule(
        id="attention-multi-item-scoring",
        when=flag("enable-mis")
        & ~((PREFILL_ATTENTION_BACKEND == "flashinfer") & (DECODE_ATTENTION_BACKEND == "flashinfer")),
        sides=(written("enable-mis"), PREFILL_ATTENTION_BACKEND, DECODE_ATTENTION_BACKEND),
        says="multi-item scoring masks attention as only flashinfer can, and this model does not run on that",
        fix="remove enable-mis",
        source=f"{_HOOK}, handle_multi_item_scoring",
        decided_by="attention_hook.handle_multi_item_scoring",
        roles=ROLES,
    ),
)

RULES: Final = (*_KERNELS, *_LAYOUTS, *_PHASES, *linear.RULES)
RESOLVED: Final = (ATTENTION_BACKEND, DSV4_ATTN_BACKEND, KV_CACHE_DTYPE, KV_LAYOUT, PAGE_SIZE)

"""The engine on a CPU: a rehearsal of a deployment, whole and slow, for which the plugin stands in for the GPU kernels.

What the plugin does not stand in for would end the engine in the middle of loading or at the first request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines.sglang.attention import DSV4_ATTN_BACKEND, KV_CACHE_DTYPE, SPECULATES
from epd_operator.engines.sglang.base import IS_PD, IS_REHEARSAL
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.moe import A2A_BACKEND_ASKED, EP_SIZE_ASKED
from epd_operator.engines.sglang.parallel import (
    ATTN_CP_SIZE_ASKED,
    ATTN_DP_SIZE_ASKED,
    DCP_SIZE,
    DP_SIZE_ASKED,
    NNODES,
    PP_SIZE,
    PREFILL_CP,
    TP_SIZE,
)
from epd_operator.engines.sglang.plugin import LOADED, PLUGINS, SOURCE
from epd_operator.engines.sglang.switch import switch
from epd_operator.rules.expression import PLATFORM, every, field_of, lower, some
from epd_operator.rules.rule import ROLES, Rule

if TYPE_CHECKING:
    from epd_operator.rules.expression import Expr

TRANSFER: Final = "mooncake_tcp"
"""The one transfer back end that moves pages without a GPU."""

_GPU: Final = field_of("resources.gpu", "int")
_RDMA: Final = field_of("resources.rdma", "int")
_BACKEND: Final = flag("disaggregation-transfer-backend")


def _width(name: str, width: Expr, fix: str) -> Rule:
    return Rule(
        id=f"rehearsal-{name}",
        when=IS_REHEARSAL & ~(width == 1),
        sides=(PLATFORM, width),
        says="a rehearsal on a CPU is one process of one rank: no stand-in exchanges anything between ranks",
        fix=f"{fix}; replicas may be more",
        source=SOURCE,
        roles=ROLES,
    )


def _missing(name: str, used: Expr, side: Expr, what: str, fix: str) -> Rule:
    return Rule(
        id=f"rehearsal-{name}",
        when=IS_REHEARSAL & used,
        sides=(PLATFORM, side),
        says=f"the plugin has no stand-in for {what}",
        fix=fix,
        source=SOURCE,
        roles=ROLES,
    )


def _variable(rule: str, name: str, wrong: Expr, why: str) -> Rule:
    return Rule(
        id=f"rehearsal-{rule}",
        when=IS_REHEARSAL & wrong,
        sides=(PLATFORM, env(name)),
        says=why,
        fix=f"remove {name}",
        source=SOURCE,
        roles=ROLES,
    )


def _kernel(rule: str, name: str, *, runs: bool) -> Rule:
    """A switch between a kernel and plain torch, which the plugin has to set to torch."""
    set_to_kernel = switch(name) if runs else env(name).given & ~switch(name, default=True)
    return _variable(
        rule, name, set_to_kernel, "the plugin sets this switch itself, to what runs without the kernels of a GPU"
    )


def _layout(rule: str, name: str, *known: str) -> Rule:
    other = env(name).given & ~lower(env(name)).isin(("auto", *known))
    return _variable(rule, name, other, "the plugin lays pages out in one way, whatever is asked for")


_PLACE: Final = (
    Rule(
        id="rehearsal-plugin",
        when=IS_REHEARSAL & ~LOADED,
        sides=(PLATFORM, PLUGINS),
        says="SGLang has no CPU code for DeepSeek-V4.1; the plugin epd stands in for the kernels, for rehearsals",
        fix="add epd to spec.engine.plugins, or set spec.engine.platform to the GPUs of the pods",
        source=SOURCE,
        roles=(),
    ),
    Rule(
        id="rehearsal-devices",
        when=every(IS_REHEARSAL, some(_GPU > 0, _RDMA > 0)),
        sides=(PLATFORM, _GPU, _RDMA),
        says="a rehearsal on a CPU uses neither GPUs nor RDMA devices, and would hold them for nothing",
        fix="remove resources.gpu and resources.rdma",
        source=SOURCE,
        roles=("encode", "prefill", "decode"),
    ),
    Rule(
        id="rehearsal-transfer",
        when=every(IS_REHEARSAL, IS_PD, ~(_BACKEND == TRANSFER)),
        sides=(PLATFORM, written("disaggregation-transfer-backend")),
        says=f"without GPUs pages move by {TRANSFER} alone",
        fix=f"set spec.transfer.backend to {TRANSFER}",
        source=SOURCE,
        roles=("prefill", "decode"),
    ),
)
_WIDTHS: Final = (
    _width("tensor-parallel", TP_SIZE, "remove tp-size"),
    _width("attention-dp", ATTN_DP_SIZE_ASKED, "remove attn-dp-size and enable-dp-attention"),
    _width("data-parallel", DP_SIZE_ASKED, "remove dp-size"),
    _width("expert-parallel", EP_SIZE_ASKED, "remove ep-size"),
    _width("pipeline-parallel", PP_SIZE, "remove pp-size"),
    _width("attention-cp", ATTN_CP_SIZE_ASKED, "remove attn-cp-size"),
    _width("decode-cp", DCP_SIZE, "remove dcp-size"),
    _width("nodes", NNODES, "remove nodes"),
)
_FEATURES: Final = (
    _missing("prefill-cp", PREFILL_CP, PREFILL_CP, "context parallelism", "remove enable-prefill-cp"),
    _missing(
        "speculation",
        SPECULATES,
        written("speculative-algorithm"),
        "speculative decoding",
        "remove speculative-algorithm on prefill and decode",
    ),
    _missing(
        "host-cache",
        flag("enable-hierarchical-cache"),
        written("enable-hierarchical-cache"),
        "the hierarchical cache",
        "remove enable-hierarchical-cache",
    ),
    _missing(
        "kv-dtype",
        ~(KV_CACHE_DTYPE == "fp8_e4m3"),
        KV_CACHE_DTYPE,
        "key/value pages other than fp8_e4m3",
        "remove kv-cache-dtype on prefill and decode",
    ),
    _missing(
        "attention",
        ~(DSV4_ATTN_BACKEND == "flashmla"),
        DSV4_ATTN_BACKEND,
        "attention other than flashmla",
        "remove dsv4-attn-backend",
    ),
    _missing(
        "exchange",
        ~(A2A_BACKEND_ASKED == "none"),
        A2A_BACKEND_ASKED,
        "an exchange of tokens between ranks",
        "remove moe-a2a-backend",
    ),
)
_VARIABLES: Final = (
    _variable(
        "cpu-engine",
        "SGLANG_USE_CPU_ENGINE",
        switch("SGLANG_USE_CPU_ENGINE"),
        "the engine's own CPU mode needs a package of kernels that have no DeepSeek-V4.1",
    ),
    _layout("kv-layout", "SGLANG_DSV4_KV_LAYOUT", "v41"),
    _layout("compressed-layout", "SGLANG_DSV4_COMPRESSED_KV_LAYOUT", "fp4"),
    _kernel("mhc-pre", "SGLANG_OPT_USE_TILELANG_MHC_PRE", runs=True),
    _kernel("mhc-post", "SGLANG_OPT_USE_TILELANG_MHC_POST", runs=True),
    _kernel("topk", "SGLANG_OPT_USE_TOPK_V2", runs=True),
    _kernel("sparse-prefill", "SGLANG_OPT_FLASHMLA_SPARSE_PREFILL", runs=True),
    _kernel("paged-logits", "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH", runs=False),
)

RULES: Final = (*_PLACE, *_WIDTHS, *_FEATURES, *_VARIABLES)
RESOLVED: Final = ()

"""The engine on a CPU: a rehearsal of a deployment, whole and slow, for which the plugin stands in for the GPU kernels.

What the plugin does not stand in for would end the engine in the middle of loading or at the first request.
"""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.attention import DSV4_ATTN_BACKEND, KV_CACHE_DTYPE, SPECULATES
from epd_operator.engines.sglang.base import IS_PD, IS_REHEARSAL
from epd_operator.engines.sglang.flags import flag, written
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
from epd_operator.rules.expression import PLATFORM, every, field_of, some
from epd_operator.rules.rule import ROLES, Rule

TRANSFER: Final = "mooncake_tcp"
"""The one transfer back end that moves pages without a GPU."""

_GPU: Final = field_of("resources.gpu", "int")
_RDMA: Final = field_of("resources.rdma", "int")
_BACKEND: Final = flag("disaggregation-transfer-backend")
_WIDTHS: Final = (
    TP_SIZE,
    ATTN_DP_SIZE_ASKED,
    DP_SIZE_ASKED,
    EP_SIZE_ASKED,
    PP_SIZE,
    ATTN_CP_SIZE_ASKED,
    DCP_SIZE,
    NNODES,
)

RULES: Final = (
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
        id="rehearsal-width",
        when=IS_REHEARSAL & some(*(~(width == 1) for width in _WIDTHS), PREFILL_CP),
        sides=(*_WIDTHS, PREFILL_CP),
        says="a rehearsal on a CPU is one process of one rank: no stand-in exchanges anything between ranks",
        fix="leave every size at 1 and nodes, too; replicas may be more",
        source=SOURCE,
        roles=ROLES,
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
    Rule(
        id="rehearsal-features",
        when=IS_REHEARSAL
        & some(
            SPECULATES,
            flag("enable-hierarchical-cache"),
            ~(KV_CACHE_DTYPE == "fp8_e4m3"),
            ~DSV4_ATTN_BACKEND.isin(("auto", "flashmla")),
            ~(A2A_BACKEND_ASKED == "none"),
        ),
        sides=(
            PLATFORM,
            written("speculative-algorithm"),
            written("enable-hierarchical-cache"),
            KV_CACHE_DTYPE,
            DSV4_ATTN_BACKEND,
            A2A_BACKEND_ASKED,
        ),
        says="the plugin has no stand-in for speculative decoding, the hierarchical cache, key/value pages other than "
        "fp8_e4m3, attention other than flashmla, and exchanges between ranks",
        fix="remove speculative-algorithm, enable-hierarchical-cache, kv-cache-dtype, dsv4-attn-backend and "
        "moe-a2a-backend",
        source=SOURCE,
        roles=ROLES,
    ),
)
RESOLVED: Final = ()

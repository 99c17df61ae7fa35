"""What the engine lets through although it should not, and what it changes without a word.

The first are refused unless the user takes responsibility by naming the rule in `spec.engine.acknowledge`; a bare
command line, which cannot, is only warned. The second are warnings that say what the engine will do instead.
"""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.attention import PAGE_SIZE
from epd_operator.engines.sglang.base import IS_HIP, IS_PD, IS_V41
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.engines.sglang.parallel import ATTN_CP_SIZE, DCP_SIZE, DP_LM_HEAD_DROPPED, PREFILL_CP
from epd_operator.rules.expression import every
from epd_operator.rules.rule import Rule

_REPLAY: Final = written("enable-decoder-swa-bounded-replay")
_ON: Final = _REPLAY == True  # noqa: E712 - builds an expression
_ENCODER: Final = written("enable-encoder-swa-bounded-replay")
_AUTO: Final = "SGLang 0.5.23, arg_groups/deepseek_v4_hook.py: automatic replay stays off here, an explicit on passes"
_LEAVE: Final = "leave decoder replay at Auto, which turns itself off here"

_HOLES: Final = (
    Rule(
        id="decoder-replay-cp",
        when=every(_ON, IS_V41, ATTN_CP_SIZE > 1),
        sides=(_REPLAY, ATTN_CP_SIZE),
        says="decoder replay was never run with context parallelism",
        fix=_LEAVE,
        source=_AUTO,
        since="0.5.23",
        hole=True,
        overridable=True,
    ),
    Rule(
        id="decoder-replay-dcp",
        when=every(_ON, IS_V41, DCP_SIZE > 1),
        sides=(_REPLAY, DCP_SIZE),
        says="decoder replay was never run with decode context parallelism",
        fix=_LEAVE,
        source=_AUTO,
        since="0.5.23",
        hole=True,
        overridable=True,
    ),
    Rule(
        id="decoder-replay-hidden-states",
        when=every(_ON, IS_V41, flag("enable-return-hidden-states")),
        sides=(_REPLAY, written("enable-return-hidden-states")),
        says="replay skips the late layers of all but the last 128 rows, so their hidden states do not exist",
        fix="leave decoder replay at Auto, which is off here, or remove enable-return-hidden-states",
        source=_AUTO,
        hole=True,
        overridable=True,
    ),
    Rule(
        id="decoder-replay-pd-rocm",
        when=every(_ON, IS_V41, IS_PD, IS_HIP),
        sides=(_REPLAY, written("disaggregation-mode")),
        says="decoder replay was never run with prefill and decode apart on ROCm",
        fix=_LEAVE,
        source=_AUTO,
        since="0.5.23",
        hole=True,
        overridable=True,
    ),
    Rule(
        id="encoder-replay-prefill-cp",
        when=every(flag("enable-encoder-swa-bounded-replay"), IS_V41, PREFILL_CP),
        sides=(_ENCODER, written("enable-prefill-cp")),
        says="encoder replay does not work with context parallelism, and the engine looks before prefill CP sets it",
        fix="turn one of them off",
        source="SGLang 0.5.23, arg_groups/deepseek_v4_hook.py: refused with attn-cp-size, not with prefill CP",
        hole=True,
        overridable=True,
    ),
)

_ATTENTION: Final = written("attention-backend")
_PAGE: Final = written("page-size")
_SOURCE: Final = "SGLang 0.5.23, arg_groups/overrides.py"

_OVERRIDES: Final = (
    Rule(
        id="page-size-override",
        when=every(_PAGE.given, ~(_PAGE == PAGE_SIZE), IS_V41),
        sides=(PAGE_SIZE,),
        says="the engine uses pages of {effective} for this model whatever is asked",
        fix="remove page-size, or set it to {effective}",
        source=_SOURCE,
        severity="warning",
        shows={"effective": PAGE_SIZE},
    ),
    Rule(
        id="attention-backend-override",
        when=every(_ATTENTION.given, ~(_ATTENTION == "dsv4"), IS_V41),
        sides=(_ATTENTION,),
        says="the engine uses dsv4 for this model whatever is asked",
        fix="remove attention-backend; dsv4-attn-backend chooses among its kernels",
        source=_SOURCE,
        severity="warning",
    ),
    Rule(
        id="dp-lm-head-dropped",
        when=DP_LM_HEAD_DROPPED,
        sides=(written("enable-dp-lm-head"), written("attn-dp-size")),
        says="nothing is data parallel here, so the engine drops it",
        fix="remove enable-dp-lm-head, or set attn-dp-size",
        source=_SOURCE,
        severity="warning",
    ),
)

_CP: Final = flag("enable-prefill-cp")
_ADVICE: Final = (
    Rule(
        id="prefill-cp-images",
        when=every(_CP, ~flag("language-model-only")),
        sides=(written("enable-prefill-cp"), written("language-model-only")),
        says="a prefill server with context parallelism refuses every request with an image",
        fix="set language-model-only on prefill and decode to serve text only, or remove enable-prefill-cp",
        source="sgl-project/sglang#40161",
        severity="warning",
        roles=("prefill", "aggregated"),
    ),
    Rule(
        id="prefill-cp-chunk",
        when=every(_CP, written("chunked-prefill-size") > 16384),
        sides=(written("chunked-prefill-size"), written("enable-prefill-cp")),
        says="with context parallelism 16384 was seen to work and 32768 to fail",
        fix="lower chunked-prefill-size to 16384, or try the larger one before you rely on it",
        source="sgl-project/sglang#36297",
        severity="warning",
    ),
    Rule(
        id="hicache-prefetch-best-effort",
        when=every(
            flag("enable-hierarchical-cache"),
            written("hicache-storage-backend").given,
            flag("hicache-storage-prefetch-policy") == "best_effort",
        ),
        sides=(written("hicache-storage-prefetch-policy"), written("hicache-storage-backend")),
        says="a request does not wait for what the store holds, so entries go in and hardly ever come out",
        fix="set hicache-storage-prefetch-policy to timeout or wait_complete",
        source="sgl-project/sglang#12092, sgl-project/sglang#18541",
        severity="warning",
    ),
    Rule(
        id="hicache-small-host-tier",
        when=every(
            flag("enable-hierarchical-cache"),
            written("hicache-storage-backend").given,
            flag("hicache-size") > 0,
            flag("hicache-size") < 8,
        ),
        sides=(written("hicache-size"), written("hicache-storage-backend")),
        says="everything from the store passes through the host tier, and one this small holds few prompts at once",
        fix="raise hicache-size (decimal GB a rank)",
        source="sgl-project/sglang#40193",
        severity="warning",
    ),
)

RULES: Final = (*_HOLES, *_OVERRIDES, *_ADVICE)
RESOLVED: Final = ()

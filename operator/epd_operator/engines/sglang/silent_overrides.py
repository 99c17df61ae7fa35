"""What the engine changes without a message: each is a warning that says what it will do instead."""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.attention import PAGE_SIZE
from epd_operator.engines.sglang.base import IS_V41
from epd_operator.engines.sglang.flags import written
from epd_operator.engines.sglang.parallel import DP_LM_HEAD_DROPPED
from epd_operator.rules.expression import every
from epd_operator.rules.rule import Rule

_ATTENTION: Final = written("attention-backend")
_PAGE: Final = written("page-size")
_SOURCE: Final = "SGLang 0.5.23, arg_groups/overrides.py"

RULES: Final = (
    Rule(
        id="page-size-override",
        when=every(_PAGE.given, ~(_PAGE == PAGE_SIZE), IS_V41),
        sides=(PAGE_SIZE,),
        says="the engine uses pages of {effective} for this model, whatever is requested",
        fix="remove page-size, or set it to {effective}",
        source=_SOURCE,
        severity="warning",
        shows={"effective": PAGE_SIZE},
    ),
    Rule(
        id="attention-backend-override",
        when=every(_ATTENTION.given, ~(_ATTENTION == "dsv4"), IS_V41),
        sides=(_ATTENTION,),
        says="the engine uses dsv4 for this model, whatever is requested",
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
RESOLVED: Final = ()

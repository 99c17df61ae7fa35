"""What the engine accepts and the operator refuses, unless the user takes responsibility for it.

The user does so by naming the rule in `spec.engine.acknowledge`. A bare command line has no such field, so there these
rules are warnings. Other modules have more of them, each beside its subject.
"""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.base import IS_HIP, IS_PD, IS_V41
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.engines.sglang.parallel import ATTN_CP_SIZE, DCP_SIZE, PREFILL_CP
from epd_operator.rules.expression import every
from epd_operator.rules.rule import Rule

_REPLAY: Final = written("enable-decoder-swa-bounded-replay")
_ON: Final = _REPLAY == True  # noqa: E712 - builds an expression
_ENCODER: Final = written("enable-encoder-swa-bounded-replay")
_AUTO: Final = "SGLang 0.5.23, arg_groups/deepseek_v4_hook.py: automatic replay stays off here, an explicit on passes"
_LEAVE: Final = "leave decoder replay at Auto, which turns itself off here"

RULES: Final = (
    Rule(
        id="decoder-replay-cp",
        when=every(_ON, IS_V41, ATTN_CP_SIZE > 1),
        sides=(_REPLAY, ATTN_CP_SIZE),
        says="decoder replay was never run with context parallelism",
        fix=_LEAVE,
        source=_AUTO,
        since="0.5.23",
        operator_only=True,
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
        operator_only=True,
        overridable=True,
    ),
    Rule(
        id="decoder-replay-hidden-states",
        when=every(_ON, IS_V41, flag("enable-return-hidden-states")),
        sides=(_REPLAY, written("enable-return-hidden-states")),
        says="replay skips the late layers of all but the last 128 rows, so their hidden states do not exist",
        fix="leave decoder replay at Auto, which is off here, or remove enable-return-hidden-states",
        source=_AUTO,
        operator_only=True,
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
        operator_only=True,
        overridable=True,
    ),
    Rule(
        id="encoder-replay-prefill-cp",
        when=every(flag("enable-encoder-swa-bounded-replay"), IS_V41, PREFILL_CP),
        sides=(_ENCODER, written("enable-prefill-cp")),
        says="encoder replay does not work with context parallelism, and the engine checks for it before prefill CP "
        "turns it on",
        fix="turn one of them off",
        source="SGLang 0.5.23, arg_groups/deepseek_v4_hook.py: refused with attn-cp-size, not with prefill CP",
        operator_only=True,
        overridable=True,
    ),
)
RESOLVED: Final = ()

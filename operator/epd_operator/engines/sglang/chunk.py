"""How much of a prompt SGLang computes at once, how many requests it runs, and what share of memory it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epd_operator.engines.sglang.base import IS_REHEARSAL, REHEARSAL
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.engines.sglang.parallel import ATTN_DP_ENABLED, ATTN_DP_SIZE
from epd_operator.rules.expression import PLATFORM, every, named, some, when
from epd_operator.rules.rule import Rule

if TYPE_CHECKING:
    from epd_operator.rules.expression import Expr

_MEMORY: Final = "SGLang 0.5.23, srt/arg_groups/memory_hook.py"
_TOKENS: Final = {"cuda-sm90": 8192, REHEARSAL: 2048}
_LARGE_TOKENS: Final = 16384
"""Tokens of a prefill step by the memory of the device: with 160 GB and more, with 90 GB, and below 20 GB."""
_SHARE: Final = written("mem-fraction-static")
_SIZES: Final = tuple(
    written(name) for name in ("max-running-requests", "max-total-tokens", "max-prefill-tokens", "context-length")
)
_REQUESTS: Final = 256
"""Requests that a server runs at once when nobody says. Source: deepseek_v4_hook.py, apply_deepseek_v4_defaults."""

CHUNK_SIZE_WHOLE: Final = named(
    "chunked_prefill_size_whole",
    flag("chunked-prefill-size").otherwise(
        when(PLATFORM == "cuda-sm90", _TOKENS["cuda-sm90"], when(IS_REHEARSAL, _TOKENS[REHEARSAL], _LARGE_TOKENS))
    ),
    written("chunked-prefill-size"),
)
"""Tokens before attention data parallelism divides them; by default what the GPU's memory allows (memory_hook.py)."""
_CHUNKED: Final = when(flag("enable-mis"), -1, CHUNK_SIZE_WHOLE)
CHUNK_SIZE: Final = named(
    "chunked_prefill_size",
    when(ATTN_DP_ENABLED, _CHUNKED // ATTN_DP_SIZE, _CHUNKED),
    written("chunked-prefill-size"),
)
"""Tokens of one prefill step on one attention data-parallel rank; chunking is off at 0 and below."""
MAX_PREFILL_TOKENS: Final = named("max_prefill_tokens", flag("max-prefill-tokens"), written("max-prefill-tokens"))
MAX_RUNNING_REQUESTS: Final = named(
    "max_running_requests", flag("max-running-requests").otherwise(_REQUESTS), written("max-running-requests")
)


def least(left: Expr, right: Expr) -> Expr:
    """The smaller of two numbers."""
    return when(left < right, left, right)


def most(left: Expr, right: Expr) -> Expr:
    """The larger of two numbers."""
    return when(left > right, left, right)


RULES: Final = (
    Rule(
        id="memory-share-range",
        when=_SHARE.given & ~every(_SHARE > 0.0, _SHARE < 1.0),
        sides=(_SHARE,),
        says="the share of GPU memory for weights and cache lies between 0 and 1; the engine takes any number and "
        "fails "
        "after the weights are loaded",
        fix="set mem-fraction-static to a number such as 0.85, or leave it out",
        source=f"{_MEMORY}, handle_gpu_memory_settings: no check",
        operator_only=True,
        overridable=True,
    ),
    Rule(
        id="sizes-positive",
        when=some(*(size <= 0 for size in _SIZES)),
        sides=_SIZES,
        says="a server holds at least one request and one token; the engine takes any number and fails after the "
        "weights are loaded",
        fix="set each of these to 1 or more, or leave it out",
        source="SGLang 0.5.23, srt/arg_groups: no check (read, not run)",
        operator_only=True,
        overridable=True,
    ),
)
RESOLVED: Final = (CHUNK_SIZE, MAX_PREFILL_TOKENS, MAX_RUNNING_REQUESTS)

"""How large the CUDA graphs are: tokens of the longest prefill and requests of the largest decode batch captured."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from epd_operator.engines.sglang.base import IS_REHEARSAL
from epd_operator.engines.sglang.chunk import CHUNK_SIZE, CHUNK_SIZE_WHOLE, least
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.engines.sglang.graph import PREFILL_GRAPH, settings
from epd_operator.engines.sglang.moe import A2A_BACKEND_ASKED
from epd_operator.engines.sglang.parallel import ATTN_DP_ENABLED, TP_SIZE
from epd_operator.rules.expression import PLATFORM, Expr, Opaque, every, named, when
from epd_operator.rules.rule import ROLES, Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_operator.rules.expression import Value

_HOOK: Final = "SGLang 0.5.23, srt/arg_groups/cuda_graph_hook.py"
_CONFIG: Final = written("cuda-graph-config")
_STEPS: Final = ((32, 4), (256, 16), (512, 32), (1024, 64), (4096, 256))
"""Up to so many tokens prefill graphs are so many apart. Source: generate_prefill_cuda_graph_batch_sizes."""


def _largest(text: Value, key: str) -> Value:
    """A number of `--cuda-graph-config`, `decode.bs` as its largest entry; absent when it has none."""
    phase, _, setting = key.partition(".")
    result = settings(text, phase).get(setting)
    numbers = [entry for entry in (result if isinstance(result, list) else [result]) if type(entry) is int]
    return max(numbers, default=None)


def _uncountable(text: Value, phase: str) -> Value:
    """Whether `--cuda-graph-config` gives a largest size that is not a whole number, and no list to use instead."""
    result = settings(text, phase)
    return result.get("bs") is None and not isinstance(result.get("max_bs", 0), int | None)


def _without_largest(text: Value) -> Value:
    """Whether `--cuda-graph-config` gives decode sizes without a largest one."""
    sizes = settings(text, "decode").get("bs")
    try:
        return sizes is not None and max(sizes) is None
    except (TypeError, ValueError):
        return True


def _configured(key: str) -> Expr:
    return Opaque(f"{key} in cuda-graph-config", partial(_largest, key=key), (_CONFIG,), "int")


def _sizes(sizes: Value) -> Value:
    return max(sizes, default=None) if isinstance(sizes, (list, tuple)) else None


def _aligned(text: Value, given: Value, asked: Value) -> Value:
    """The largest prefill graph in tokens after all are rounded up to 8; absent when all are multiples of 8 already.

    Graphs come in steps of 4 to 512 tokens up to the size asked for, 2048 by default.
    """
    sizes = settings(text, "prefill").get("bs", given)
    if isinstance(sizes, (list, tuple)):
        numbers = [size for size in sizes if isinstance(size, int)]
        return (max(numbers) + 7) // 8 * 8 if any(size % 8 for size in numbers) else None
    limit = asked if isinstance(asked, int) and asked else 2048
    step = next((step for largest, step in _STEPS if limit <= largest), 512)
    size = max([limit // step * step, *(largest for largest, _ in _STEPS if largest <= limit)])
    return (size + 7) // 8 * 8 if size > 0 else None


_SIZES_DECODE: Final = _configured("decode.bs").otherwise(
    Opaque("largest of cuda-graph-bs-decode", _sizes, (written("cuda-graph-bs-decode"),), "int")
)
_ASKED_DECODE: Final = _configured("decode.max_bs").otherwise(written("cuda-graph-max-bs-decode"))
_ROOM_DECODE: Final = when((PLATFORM == "cuda-sm90") & (TP_SIZE < 4), 256, 512)
_REQUESTS_GIVEN: Final = written("max-running-requests")
DECODE_MAX_BS: Final = named(
    "cuda_graph_decode_max_bs",
    _SIZES_DECODE.otherwise(
        when(
            IS_REHEARSAL,
            # Without a GPU it is the compiler's largest batch.
            flag("torch-compile-max-bs"),
            _ASKED_DECODE.otherwise(when(_REQUESTS_GIVEN < _ROOM_DECODE, _REQUESTS_GIVEN, _ROOM_DECODE)),
        )
    ),
    written("cuda-graph-max-bs-decode"),
    written("cuda-graph-bs-decode"),
    _CONFIG,
    _REQUESTS_GIVEN,
)
"""Largest batch of a decode graph, whether or not one is captured. Source: memory_hook.py."""
_ASKED_PREFILL: Final = _configured("prefill.max_bs").otherwise(written("cuda-graph-max-bs-prefill"))
_POOL: Final = written("max-total-tokens")
_IS_ALIGNED: Final = every(A2A_BACKEND_ASKED == "deepep", PREFILL_GRAPH == "breakable")
"""DeepEP captures prefill graphs of multiples of 8 tokens. Source: cuda_graph_hook.py, apply_deepep_adjustments."""
_PREFILL_SIZE: Final = when(
    _IS_ALIGNED,
    Opaque("aligned prefill graphs", _aligned, (_CONFIG, written("cuda-graph-bs-prefill"), _ASKED_PREFILL), "int"),
    None,
).otherwise(_ASKED_PREFILL.otherwise(least(CHUNK_SIZE_WHOLE, _POOL.otherwise(CHUNK_SIZE_WHOLE))))
PREFILL_MAX_BS: Final = named(
    "cuda_graph_prefill_max_bs",
    when(
        every(
            ~_ASKED_PREFILL.given,
            ATTN_DP_ENABLED,
            ~(PREFILL_GRAPH == "disabled"),
            ~flag("enable-mis"),
            _PREFILL_SIZE > CHUNK_SIZE,
        ),
        CHUNK_SIZE,
        _PREFILL_SIZE,
    ),
    written("cuda-graph-max-bs-prefill"),
    _CONFIG,
)
"""Longest prefill of a graph, in tokens."""


def _odd(what: str, function: Callable[..., Value]) -> Expr:
    return Opaque(f"{what} in cuda-graph-config", function, (_CONFIG,), "bool", blind=False, nullable=False)


def _miscounted(phase: str) -> Rule:
    return Rule(
        id=f"graph-config-{phase}-size",
        when=every(
            _odd(f"type of {phase}.max_bs", partial(_uncountable, phase=phase)),
            ~written(f"cuda-graph-bs-{phase}").given,
        ),
        sides=(_CONFIG,),
        says=f"the largest size of a {phase} graph is a whole number",
        fix=f"write {phase}.max_bs without quotes and without a fraction",
        source=f"{_HOOK}, generate_{phase}_cuda_graph_batch_sizes",
        decided_by=f"cuda_graph_hook.generate_{phase}_cuda_graph_batch_sizes",
    )


_SIZES: Final = (
    _miscounted("decode"),
    _miscounted("prefill"),
    Rule(
        id="graph-config-decode-sizes",
        when=_odd("largest of decode.bs", _without_largest),
        sides=(_CONFIG,),
        says="the sizes of decode graphs are a list of whole numbers with at least one entry",
        fix="write decode.bs as a list such as [1, 2, 4], or leave it out",
        source="SGLang 0.5.23, srt/arg_groups/memory_hook.py, handle_gpu_memory_settings",
        decided_by="memory_hook.handle_gpu_memory_settings",
    ),
)

RULES: Final = tuple(replace(rule, roles=ROLES) for rule in _SIZES)
RESOLVED: Final = (DECODE_MAX_BS, PREFILL_MAX_BS)

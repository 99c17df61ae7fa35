"""CUDA graphs of prefill and decode: which back end each phase ends up with.

The tricky idea: three ways to say it are ranked, `--cuda-graph-config` before `--cuda-graph-backend-*` before the
switches that turn graphs off, and what was set stays: only a phase that nothing sets follows the model and the
role. For DeepSeek-V4.1 that means no prefill graph unless someone asks for one.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from epd_operator.engines.sglang.attention import ATTENTION_BACKEND, DSV4_ATTN_BACKEND, IS_TRTLLM, PAGE_SIZE
from epd_operator.engines.sglang.base import IS_PREFILL, IS_V41
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.engines.sglang.model import CONTEXT_LENGTH
from epd_operator.engines.sglang.moe import A2A_BACKEND
from epd_operator.engines.sglang.parallel import IS_DWDP
from epd_operator.engines.sglang.release import since
from epd_operator.rules.expression import Opaque, every, named, some, when
from epd_operator.rules.rule import ROLES, Rule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.rules.expression import Expr, Value

BACKENDS: Final = ("full", "breakable", "disabled")
_RELEASE: Final = "0.5.23"
_SOURCE: Final = "SGLang 0.5.23, arg_groups/cuda_graph_hook.py"
_CONFIG: Final = written("cuda-graph-config")
_CONTEXT: Final = written("cuda-graph-prefill-max-context")
_OFF: Final = flag("disable-cuda-graph") | IS_DWDP


def settings(text: Value, phase: str) -> Mapping[str, Any]:
    """What `--cuda-graph-config` says of a phase, `prefill` or `decode`; nothing when it is not such JSON."""
    try:
        phases = json.loads(str(text))
    except (ValueError, RecursionError):
        return {}
    result = phases.get(phase) if isinstance(phases, dict) else None
    return result if isinstance(result, dict) else {}


_LONGEST: Final = "max_context_size"


def _backend_in(text: Value, phase: str) -> Value:
    """The back end named for a phase; a value other than a string as JSON, which names no back end."""
    message = settings(text, phase)
    if "backend" not in message:
        return None
    return message["backend"] if isinstance(message["backend"], str) else json.dumps(message["backend"])


def _context_in(text: Value) -> Value:
    """Longest context of the prefill graph in tokens, before it is rounded up to pages; 0 when it is not a number."""
    asked = settings(text, "prefill").get(_LONGEST)
    if asked is None or isinstance(asked, int):
        return None if asked is None else int(asked)
    return math.ceil(asked) if isinstance(asked, float) and math.isfinite(asked) else 0


_IN_CONFIG: Final[Mapping[str, Expr]] = {
    "prefill": Opaque(
        "prefill back end in cuda-graph-config", lambda text: _backend_in(text, "prefill"), (_CONFIG,), "str"
    ),
    "decode": Opaque(
        "decode back end in cuda-graph-config", lambda text: _backend_in(text, "decode"), (_CONFIG,), "str"
    ),
}


def _requested(phase: str) -> Expr:
    """The back end that the user requested for a phase; absent when none."""
    named_backend = written(f"cuda-graph-backend-{phase}")
    switched_off = _OFF | flag(f"disable-{phase}-cuda-graph")
    return when(
        _IN_CONFIG[phase].given,
        _IN_CONFIG[phase],
        when(named_backend.given, named_backend, when(switched_off, "disabled", None)),
    )


def _settles(phase: str) -> tuple[Expr, ...]:
    # The JSON wins over the flag.
    names = ("cuda-graph-config", f"cuda-graph-backend-{phase}", f"disable-{phase}-cuda-graph", "disable-cuda-graph")
    return tuple(written(name) for name in names)


_PREFILL_REQUESTED: Final = _requested("prefill")
_DECODE_REQUESTED: Final = _requested("decode")
PREFILL_GRAPH: Final = named(
    "cuda_graph_prefill_configured", _PREFILL_REQUESTED.otherwise("disabled"), *_settles("prefill")
)
"""Prefill back end while the features of the model are judged."""
PREFILL_GRAPH_PLACE: Final = when(
    _IN_CONFIG["prefill"].given, "prefill.backend in cuda-graph-config", "cuda-graph-backend-prefill"
)
"""Where a user changes it: what the JSON says wins over the flag."""
DECODE_GRAPH_PLACE: Final = when(
    _IN_CONFIG["decode"].given, "decode.backend in cuda-graph-config", "cuda-graph-backend-decode"
)
DECODE_GRAPH: Final = named(
    "cuda_graph_decode_configured",
    _DECODE_REQUESTED.otherwise(when(IS_PREFILL, "disabled", "full")),
    *_settles("decode"),
)
"""Decode back end at the same time; a prefill pod has none unless one is asked for."""

_EAGER: Final = some(
    ATTENTION_BACKEND.isin(("torch_native", "flex_attention")),
    flag("enable-mis"),
    (A2A_BACKEND == "deepep") & (flag("deepep-mode") == "normal"),
    written("debug-tensor-dump-output-folder").given,
    written("msprobe-dump-config").given,
)
CUDA_GRAPH_PREFILL: Final = named(
    "cuda_graph_prefill",
    when(_EAGER | (A2A_BACKEND == "deepep_v2"), "disabled", PREFILL_GRAPH),
    *_settles("prefill"),
)
"""Prefill back end that runs."""
CUDA_GRAPH_DECODE: Final = named("cuda_graph_decode", when(_EAGER, "disabled", DECODE_GRAPH), *_settles("decode"))
"""Decode back end that runs."""

PREFILL_MAX_CONTEXT: Final = named(
    "cuda_graph_prefill_max_context",
    when(
        Opaque(
            "prefill graph context in cuda-graph-config",
            lambda text: _LONGEST in settings(text, "prefill"),
            (_CONFIG,),
            "bool",
            blind=False,
            nullable=False,
        ),
        Opaque("prefill graph context in cuda-graph-config", _context_in, (_CONFIG,), "int"),
        _CONTEXT,
    ),
    _CONTEXT,
    _CONFIG,
)
"""Longest context of the prefill graph as asked for; absent when nothing caps it."""

_PAGES: Final = (PREFILL_MAX_CONTEXT + PAGE_SIZE - 1) // PAGE_SIZE * PAGE_SIZE
_TRTLLM_GRAPHS: Final = since(_RELEASE, "disabled or breakable", "disabled")

RULES: Final = (
    Rule(
        id="graph-backend",
        when=~(PREFILL_GRAPH.isin(BACKENDS) & DECODE_GRAPH.isin(BACKENDS)),
        sides=(_CONFIG,),
        says="a CUDA graph back end is full, breakable or disabled",
        fix="correct the back end in cuda-graph-config, or set cuda-graph-backend-prefill and "
        "cuda-graph-backend-decode "
        "instead",
        source=f"{_SOURCE}, validate_cuda_graph_config",
        decided_by="cuda_graph_hook.validate_cuda_graph_config",
        roles=ROLES,
    ),
    Rule(
        id="graph-context",
        when=(PREFILL_MAX_CONTEXT < 1) | every(CONTEXT_LENGTH > 0, _PAGES > CONTEXT_LENGTH),
        sides=(PREFILL_MAX_CONTEXT, CONTEXT_LENGTH),
        says="the context of the prefill graph, rounded up to pages of {page}, lies between 1 and the {longest} tokens "
        "of "
        "the longest request",
        fix="set cuda-graph-prefill-max-context to at most {longest}, or leave it out",
        source=f"{_SOURCE}, finalize_cuda_graph_prefill_max_context",
        decided_by="cuda_graph_hook._resolve_max_context_size",
        roles=ROLES,
        shows={"page": PAGE_SIZE, "longest": CONTEXT_LENGTH},
    ),
    Rule(
        id="attention-trtllm-prefill-graph",
        when=every(
            IS_V41,
            IS_TRTLLM,
            since(_RELEASE, ~PREFILL_GRAPH.isin(("disabled", "breakable")), ~(PREFILL_GRAPH == "disabled")),
        ),
        sides=(DSV4_ATTN_BACKEND, PREFILL_GRAPH),
        says="TRT-LLM attention runs DeepSeek-V4.1 with a prefill graph that is {graphs}, not {graph}",
        fix="set {place} to {graphs}, or dsv4-attn-backend to flashmla",
        source="SGLang 0.5.23, arg_groups/deepseek_v4_hook.py",
        decided_by="deepseek_v4_hook.validate_deepseek_v41_features",
        roles=ROLES,
        stated=("dsv41-2026-09", "0.5.23"),
        shows={"graph": PREFILL_GRAPH, "graphs": _TRTLLM_GRAPHS, "place": PREFILL_GRAPH_PLACE},
    ),
)
RESOLVED: Final = (CUDA_GRAPH_PREFILL, CUDA_GRAPH_DECODE)

"""SWA bounded replay of the two halves of the language model: when it is on, and what it cannot be combined with.

The tricky idea: not asking is safe. Since 0.5.23 decoder replay turns itself on wherever it works and off elsewhere;
only an explicit "on" can be refused, and an explicit "on" is accepted in four places that the automatic choice avoids.
"""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.attention import DSV4_ATTN_BACKEND, IS_TRTLLM, PAGE_SIZE
from epd_operator.engines.sglang.base import IS_CUDA_TO_V41, IS_DECODE, IS_HIP, IS_PD, IS_PREFILL, IS_V41, MODE
from epd_operator.engines.sglang.chunk import CHUNK_SIZE, MAX_RUNNING_REQUESTS
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.engines.sglang.graph import PREFILL_GRAPH, PREFILL_GRAPH_PLACE
from epd_operator.engines.sglang.model import RETURN_HIDDEN_STATES
from epd_operator.engines.sglang.moe import A2A_BACKEND_ASKED
from epd_operator.engines.sglang.parallel import (
    ATTN_CP_SIZE_ASKED,
    ATTN_DP_ENABLED_ASKED,
    ATTN_DP_SIZE_ASKED,
    DCP_SIZE,
    PREFILL_CP,
    TP_SIZE,
)
from epd_operator.engines.sglang.release import since
from epd_operator.rules.expression import PLATFORM, TRUE, every, named, some, when
from epd_operator.rules.rule import ROLES, Rule

_SOURCE: Final = "SGLang 0.5.23, arg_groups/deepseek_v4_hook.py"
_FEATURES: Final = "deepseek_v4_hook.validate_deepseek_v41_features"
_BUDGET: Final = "deepseek_v4_hook.validate_deepseek_v41_encoder_replay_budget"
_READ: Final = ("dsv41-2026-09", "0.5.23")
_ALL: Final = ("dsv41-2026-09", "dsv41-37ae292e", "0.5.23")
_RELEASE: Final = "0.5.23"
_WINDOW: Final = 128
"""Rows that a replay runs again: the sliding window of DeepSeek-V4.1."""

_DECODER: Final = written("enable-decoder-swa-bounded-replay")
_ENCODER: Final = written("enable-encoder-swa-bounded-replay")
_DECODER_ON: Final = IS_V41 & (_DECODER == True)  # noqa: E712 - builds an expression
_ENCODER_ON: Final = IS_V41 & flag("enable-encoder-swa-bounded-replay")
_LEAVE_OUT: Final = "leave decoder replay to the engine"

_IS_GRAPH: Final = ~(PREFILL_GRAPH == "disabled")
_IS_WHOLE_GRAPH: Final = ~PREFILL_GRAPH.isin(("disabled", "breakable"))
_DECODER_GRAPH: Final = since(_RELEASE, _IS_WHOLE_GRAPH, since("dsv41-37ae292e", _IS_GRAPH, _IS_WHOLE_GRAPH))
_DECODER_GRAPHS: Final = since(
    _RELEASE, "disabled or breakable", since("dsv41-37ae292e", "disabled", "disabled or breakable")
)
_WHOLE_DP: Final = every(
    ATTN_DP_SIZE_ASKED == TP_SIZE,
    ATTN_CP_SIZE_ASKED == 1,
    (A2A_BACKEND_ASKED == "none") | (IS_CUDA_TO_V41 & (A2A_BACKEND_ASKED == "megamoe")),
)
"""Attention DP as wide as TP, with experts that decoder replay was made for."""
_ANY_CP: Final = some(PREFILL_CP, ~(ATTN_CP_SIZE_ASKED == 1), ~(DCP_SIZE == 1))

DECODER_REPLAY: Final = named(
    "enable_decoder_swa_bounded_replay",
    when(
        IS_V41 & ~_DECODER.given,
        since(
            _RELEASE,
            every(
                IS_CUDA_TO_V41 | ~IS_PD,
                ~_ANY_CP,
                ~RETURN_HIDDEN_STATES,
                ~_IS_WHOLE_GRAPH,
                ~ATTN_DP_ENABLED_ASKED | _WHOLE_DP,
            ),
            False,
        ),
        _DECODER,
    ),
    _DECODER,
)
"""Whether prefill runs the decoder half on the last window of each prompt only."""

_DECODER_RULES: Final = (
    Rule(
        id="decoder-replay-prefill-graph",
        when=_DECODER_ON & _DECODER_GRAPH,
        sides=(_DECODER, PREFILL_GRAPH),
        says="decoder replay runs with a prefill graph that is {graphs}, not {graph}",
        fix=f"set {{place}} to {{graphs}}, or {_LEAVE_OUT}",
        source=_SOURCE,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_ALL,
        shows={"graph": PREFILL_GRAPH, "graphs": _DECODER_GRAPHS, "place": PREFILL_GRAPH_PLACE},
    ),
    Rule(
        id="decoder-replay-attention-dp",
        when=every(_DECODER_ON, ATTN_DP_ENABLED_ASKED, ~_WHOLE_DP),
        sides=(_DECODER, ATTN_DP_SIZE_ASKED, TP_SIZE, ATTN_CP_SIZE_ASKED, A2A_BACKEND_ASKED),
        says="decoder replay with attention data parallelism needs it as wide as TP ({dp} of {tp} here), attention CP "
        "1 "
        "({cp} here) and moe-a2a-backend {backends} ({a2a} here)",
        fix=f"set attn-dp-size to {{tp}} and moe-a2a-backend to none, or attn-dp-size to 1, or {_LEAVE_OUT}",
        source=_SOURCE,
        decided_by=_FEATURES,
        roles=ROLES,
        since=_RELEASE,
        shows={
            "dp": ATTN_DP_SIZE_ASKED,
            "tp": TP_SIZE,
            "cp": ATTN_CP_SIZE_ASKED,
            "a2a": A2A_BACKEND_ASKED,
            "backends": when(IS_HIP, "none", "none or megamoe"),
        },
    ),
    Rule(
        id="decoder-replay-any-attention-dp",
        when=_DECODER_ON & ATTN_DP_ENABLED_ASKED,
        sides=(_DECODER, ATTN_DP_SIZE_ASKED),
        says="decoder replay has no attention data parallelism in this version",
        fix="set attn-dp-size to 1, or remove decoder replay",
        source="SGLang commit 006cbb66, srt/arg_groups/deepseek_v4_hook.py",
        decided_by=_FEATURES,
        roles=ROLES,
        until=_RELEASE,
        stated=("dsv41-2026-09", "dsv41-37ae292e"),
    ),
)

_DECODER_TRTLLM: Final = Rule(
    id="decoder-replay-trtllm",
    when=_DECODER_ON & IS_TRTLLM,
    sides=(_DECODER, DSV4_ATTN_BACKEND),
    says="decoder replay does not run on TRT-LLM attention in this version",
    fix=f"set dsv4-attn-backend to flashmla, or {_LEAVE_OUT}",
    source="SGLang commit 006cbb66, srt/arg_groups/deepseek_v4_hook.py",
    decided_by=_FEATURES,
    roles=ROLES,
    until=_RELEASE,
    stated=("dsv41-2026-09",),
)

_ENCODER_GRAPH: Final = since(_RELEASE, _IS_WHOLE_GRAPH | (IS_HIP & _IS_GRAPH), _IS_GRAPH)
_ENCODER_GRAPHS: Final = since(_RELEASE, when(IS_HIP, "disabled", "disabled or breakable"), "disabled")
_ENCODER_ROLE: Final = since(_RELEASE, IS_DECODE | (IS_PREFILL & IS_HIP), IS_PD)
_LEAST_CHUNK: Final = since(_RELEASE, PAGE_SIZE + _WINDOW, _WINDOW)


def _excludes(feature: str, name: str, why: str) -> Rule:
    """Encoder replay refuses a feature that one flag turns on."""
    return Rule(
        id=f"encoder-replay-{feature}",
        when=_ENCODER_ON & flag(name).otherwise(False),
        sides=(_ENCODER, written(name)),
        says=why,
        fix=f"remove {name} or encoder replay",
        source=_SOURCE,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    )


_ENCODER_RULES: Final = (
    Rule(
        id="encoder-replay-model",
        when=flag("enable-encoder-swa-bounded-replay") & ~IS_V41,
        sides=(_ENCODER,),
        says="encoder replay exists for DeepSeek-V4.1 only, and this checkpoint is another model",
        fix="remove encoder replay",
        source=_SOURCE,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        id="encoder-replay-prefill-graph",
        when=_ENCODER_ON & _ENCODER_GRAPH,
        sides=(_ENCODER, PREFILL_GRAPH, PLATFORM),
        says="encoder replay runs with a prefill graph that is {graphs}, not {graph}",
        fix="set {place} to {graphs}, or remove encoder replay",
        source=_SOURCE,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
        shows={"graph": PREFILL_GRAPH, "graphs": _ENCODER_GRAPHS, "place": PREFILL_GRAPH_PLACE},
    ),
    Rule(
        id="encoder-replay-attention-cp",
        when=_ENCODER_ON & (ATTN_CP_SIZE_ASKED > 1),
        sides=(_ENCODER, ATTN_CP_SIZE_ASKED),
        says="encoder replay has no context parallelism",
        fix="set attn-cp-size to 1, or remove encoder replay",
        source=_SOURCE,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        id="encoder-replay-attention-dp",
        when=every(_ENCODER_ON, ATTN_DP_ENABLED_ASKED, since(_RELEASE, IS_HIP, TRUE)),
        sides=(_ENCODER, ATTN_DP_SIZE_ASKED, PLATFORM),
        says="encoder replay has no attention data parallelism {where}",
        fix="set attn-dp-size to 1, or remove encoder replay",
        source=_SOURCE,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
        shows={"where": since(_RELEASE, "on ROCm", "in this version")},
    ),
    Rule(
        id="encoder-replay-role",
        when=_ENCODER_ON & _ENCODER_ROLE,
        sides=(_ENCODER, MODE, PLATFORM),
        says="encoder replay runs {where}",
        fix="remove encoder replay from this role",
        source=_SOURCE,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
        shows={
            "where": since(
                _RELEASE,
                when(
                    IS_HIP, "on ROCm only where prefill and decode share a server", "where prompts are prefilled only"
                ),
                "only where prefill and decode share a server",
            )
        },
    ),
    Rule(
        id="encoder-replay-trtllm",
        when=_ENCODER_ON & IS_TRTLLM,
        sides=(_ENCODER, DSV4_ATTN_BACKEND),
        says="encoder replay does not run on TRT-LLM attention",
        fix="set dsv4-attn-backend to flashmla, or remove encoder replay",
        source=_SOURCE,
        decided_by=_FEATURES,
        roles=ROLES,
        stated=_READ,
    ),
    _excludes("unified-memory", "enable-unified-memory", "encoder replay has no unified memory pool"),
    _excludes("mixed-chunk", "enable-mixed-chunk", "encoder replay cannot mix prefill and decode in one batch"),
    _excludes("lora", "enable-lora", "encoder replay has no LoRA"),
    _excludes("radix-sessions", "enable-session-radix-cache", "encoder replay has no sessions in the radix cache"),
    Rule(
        id="encoder-replay-external-linker",
        when=_ENCODER_ON & flag("enable-unified-cache-external-linker"),
        sides=(_ENCODER, written("enable-unified-cache-external-linker")),
        says="encoder replay has no unified cache with an external linker in this version",
        fix="remove enable-unified-cache-external-linker or encoder replay",
        source="SGLang commit 006cbb66, srt/arg_groups/deepseek_v4_hook.py",
        decided_by=_FEATURES,
        roles=ROLES,
        until=_RELEASE,
        stated=("dsv41-2026-09",),
    ),
    Rule(
        id="encoder-replay-running-requests",
        when=_ENCODER_ON & ~(MAX_RUNNING_REQUESTS > 0),
        sides=(_ENCODER, MAX_RUNNING_REQUESTS),
        says="encoder replay needs room for at least one running request",
        fix="set max-running-requests to a positive number or leave it out",
        source=_SOURCE,
        decided_by=_BUDGET,
        roles=ROLES,
        stated=_READ,
    ),
    Rule(
        id="encoder-replay-chunk",
        when=_ENCODER_ON & ~(CHUNK_SIZE >= _LEAST_CHUNK),
        sides=(_ENCODER, CHUNK_SIZE, PAGE_SIZE),
        says="encoder replay needs chunked prefill of at least {least} tokens an attention DP rank, and gets {chunk}",
        fix="raise chunked-prefill-size, which is divided by attn-dp-size first, or leave it out",
        source=_SOURCE,
        decided_by=_BUDGET,
        roles=ROLES,
        stated=_READ,
        shows={"least": _LEAST_CHUNK, "chunk": CHUNK_SIZE},
    ),
)

RULES: Final = (*_DECODER_RULES, _DECODER_TRTLLM, *_ENCODER_RULES)
RESOLVED: Final = (DECODER_REPLAY,)

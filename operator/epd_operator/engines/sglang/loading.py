"""How weights get into memory, and what is kept out of it."""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.attention import SPECULATES
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.rules.expression import some
from epd_operator.rules.rule import ROLES, Rule

_OFFLOADED: Final = written("ple-offload-embedding")

RULES: Final = (
    Rule(
        id="expert-pack-model",
        when=flag("load-format") == "expert_pack",
        sides=(written("load-format"),),
        says="expert packs are made of DeepSeek-V4 or Kimi-K3 weights, not of DeepSeek-V4.1",
        fix="leave load-format out",
        source="SGLang 0.5.23, arg_groups/expert_pack_hook.py",
        decided_by="expert_pack_hook.handle_expert_pack",
        roles=ROLES,
    ),
    Rule(
        id="weight-cache-speculation",
        when=~(flag("weight-cache-mode") == "off") & SPECULATES,
        sides=(written("weight-cache-mode"), written("speculative-algorithm")),
        says="the weight cache holds the model without its draft",
        fix="set weight-cache-mode: off, or remove speculative-algorithm",
        source="SGLang 0.5.23, arg_groups/model_path_hook.py",
        decided_by="model_path_hook.handle_load_format",
        roles=ROLES,
    ),
    Rule(
        id="embedding-offload",
        when=some(
            (_OFFLOADED == True) & some(flag("cpu-offload-gb") > 0, flag("offload-group-size") > 0),  # noqa: E712
            (_OFFLOADED == False) & (flag("ple-offload-backend") == "file"),  # noqa: E712 - an expression
        ),
        sides=(
            _OFFLOADED,
            written("cpu-offload-gb"),
            written("offload-group-size"),
            written("ple-offload-backend"),
        ),
        says="offloading the n-gram embedding excludes offloading layers, and its file back end needs it on",
        fix="leave the ple-offload flags out: DeepSeek-V4.1 has no such embedding",
        source="SGLang 0.5.23, arg_groups/memory_hook.py",
        decided_by="memory_hook.handle_offload_compatibility",
        roles=ROLES,
    ),
)
RESOLVED: Final = ()

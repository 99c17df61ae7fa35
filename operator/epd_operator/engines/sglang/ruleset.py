"""SGLang's rules, collected from the modules that hold them."""

from __future__ import annotations

from typing import Final

from epd_operator.engines import hosting
from epd_operator.engines.sglang import (
    advice,
    agreement,
    all_to_all,
    attention,
    budget,
    cache,
    capture,
    chunk,
    context_parallel,
    disaggregation,
    elastic,
    encode,
    graph,
    hicache,
    last_checks,
    loading,
    lora,
    mamba,
    media,
    metrics,
    model,
    moe,
    operator_only,
    parallel,
    plugin,
    rehearsal,
    replay,
    resource,
    serving,
    silent_overrides,
    speculation,
    storage,
    window,
)
from epd_operator.engines.sglang.base import CHECKPOINT
from epd_operator.engines.sglang.catalogue import catalogue, encoder_catalogue
from epd_operator.engines.sglang.ownership import OWNED
from epd_operator.engines.sglang.profile import SGLANG as PROFILES
from epd_operator.engines.shared import RULES, transfer_backend
from epd_operator.rules.ruleset import Ruleset
from epd_operator.rules.version import KNOWN

_MODULES: Final = (
    parallel,
    context_parallel,
    chunk,
    moe,
    all_to_all,
    capture,
    budget,
    elastic,
    attention,
    mamba,
    graph,
    replay,
    speculation,
    model,
    disaggregation,
    plugin,
    encode,
    rehearsal,
    cache,
    hicache,
    storage,
    window,
    lora,
    serving,
    media,
    last_checks,
    metrics,
    loading,
    agreement,
    operator_only,
    silent_overrides,
    advice,
    resource,
)

SGLANG: Final = Ruleset(
    engine_type="SGLang",
    versions=KNOWN,
    catalogue=lambda version, role: encoder_catalogue(version) if role == "encode" else catalogue(version),
    owned=OWNED,
    rules=(
        *RULES,
        *hosting.rules("SGLang", PROFILES[-1].pre_stop_seconds, plugin.NAME),
        transfer_backend(PROFILES[-1].transfers, "SGLang"),
        *(rule for module in _MODULES for rule in module.RULES),
    ),
    resolved=tuple(value for module in _MODULES for value in module.RESOLVED),
    checkpoint=CHECKPOINT,
    default_platform="cuda-sm90",
    environment=frozenset(str(entry["name"]) for entry in PROFILES[-1].environment),
    # LeaderWorkerSet sets them, and the command line of every pod of a group is made from them.
    group_environment=frozenset({"LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE"}),
)

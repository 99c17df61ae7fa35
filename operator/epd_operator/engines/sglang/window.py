"""The sliding windows of a stored prefix, and the pool of them that SGLang has with the plugin alone."""

from __future__ import annotations

from typing import Final

from epd_operator.engines import swa_pool
from epd_operator.engines.sglang import plugin
from epd_operator.engines.sglang.base import IS_V41
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.parallel import ATTN_DP_ENABLED, ATTN_DP_SIZE
from epd_operator.engines.sglang.switch import switch
from epd_operator.engines.shared import MEMORY, MEMORY_GIB
from epd_operator.rules.expression import at, every, field_of
from epd_operator.rules.rule import Rule

_STORAGE: Final = written("hicache-storage-backend")
_REPLAY: Final = written("enable-encoder-swa-bounded-replay")
_REPLAY_FIELD: Final = field_of("encoderReplay", "bool")
_REPLAYS: Final = at("prefill", _REPLAY_FIELD) == True  # noqa: E712 - builds an expression
_KEEPS_NOTHING: Final = ("shm", "sim")

_WAY_OUT: Final = (
    f"add {plugin.NAME} to spec.engine.plugins of SGLang {plugin.RELEASE}, which uses the pool; or set "
    "spec.swaPool.mode to Disabled, and give prefill enable-hierarchical-cache and a hicache-storage-backend to find "
    "key/value pages again for days"
)
_POOL: Final = (
    Rule(
        id="swa-pool-encoder-replay",
        when=every(swa_pool.EXISTS, ~plugin.LOADED, _REPLAYS),
        sides=(swa_pool.MODE, at("prefill", _REPLAY_FIELD)),
        says="by itself SGLang has no pool of windows: with encoder replay it keeps windows in a ring of its own, and "
        "runs the last 128 tokens of every prefix hit again without looking for them elsewhere; and its decode servers "
        "cannot save what they append",
        fix=_WAY_OUT,
        source="SGLang 0.5.23, mem_cache/hybrid_cache/hybrid_pool_assembler.py, model_executor/encoder_swa_replay.py, "
        "disaggregation/decode_kvcache_offload_manager.py",
        roles=(),
    ),
    Rule(
        id="swa-pool-paged-windows",
        when=every(swa_pool.EXISTS, ~plugin.LOADED, ~_REPLAYS),
        sides=(swa_pool.MODE, at("prefill", _REPLAY_FIELD)),
        says="by itself SGLang has no pool of windows: without encoder replay they are pages of its hierarchical "
        "cache, where one that is missing costs the whole prefix in front of it, and not just the 128 tokens that "
        "losing a pool may cost; and its decode servers cannot save what they append",
        fix=_WAY_OUT,
        source="SGLang 0.5.23, mem_cache/hybrid_cache/hybrid_pool_assembler.py, mem_cache/hicache_storage.py, "
        "disaggregation/decode_kvcache_offload_manager.py",
        roles=(),
    ),
)
_USED: Final = swa_pool.EXISTS & plugin.LOADED
_STAGING: Final = env("SGLANG_OPT_DSV41_ENGRAM_HOST_STAGING")
_REPLAY_CODE: Final = "SGLang 0.5.23, model_executor/encoder_swa_replay.py"
_PLUGGED: Final = (
    Rule(
        id="sglang-pool-replay",
        when=_USED & ~_REPLAYS,
        sides=(swa_pool.MODE, at("prefill", _REPLAY_FIELD)),
        says="the plugin puts a window where prefill would otherwise run its rows again, and without encoder replay "
        "there is no such place",
        fix="set spec.roles.prefill.encoderReplay to true, or spec.swaPool.mode to Disabled",
        source=f"{plugin.SOURCE}; {_REPLAY_CODE}",
        roles=(),
    ),
    Rule(
        id="sglang-pool-prefix-cache",
        when=_USED & flag("disable-radix-cache"),
        sides=(swa_pool.MODE, written("disable-radix-cache")),
        says="a window is useful only after a prefix whose pages are cached, so without a radix cache the pool would "
        "never be asked",
        fix="remove disable-radix-cache, or set spec.swaPool.mode to Disabled",
        source=f"{plugin.SOURCE}; {_REPLAY_CODE}",
        roles=("prefill",),
    ),
    Rule(
        id="sglang-pool-attention-dp",
        when=_USED & ATTN_DP_ENABLED,
        sides=(swa_pool.MODE, ATTN_DP_SIZE),
        says="with attention data parallelism every rank counts the rows of all replays in advance, and a window from "
        "the pool would be one that they count and nobody runs",
        fix="remove attn-dp-size and enable-dp-attention on prefill, or set spec.swaPool.mode to Disabled",
        source=f"{plugin.SOURCE}; SGLang 0.5.23, managers/scheduler_components/dp_attn.py, folded_replay_rows",
        roles=("prefill",),
    ),
    Rule(
        id="sglang-pool-engram-staging",
        when=_USED & switch("SGLANG_OPT_DSV41_ENGRAM_HOST_STAGING"),
        sides=(swa_pool.MODE, _STAGING),
        says="staged rows of the n-gram tables are counted with the rows of all replays in advance, and a window from "
        "the pool would be one that they count and nobody runs",
        fix="remove SGLANG_OPT_DSV41_ENGRAM_HOST_STAGING, or set spec.swaPool.mode to Disabled",
        source=f"{plugin.SOURCE}; SGLang 0.5.23, layers/engram_staging.py, replay_len",
        roles=("prefill",),
    ),
    Rule(
        id="sglang-pool-memory",
        when=every(_USED, swa_pool.IN_PROCESS, swa_pool.POOL_MIB * (1 / 1024) >= MEMORY_GIB),
        sides=(swa_pool.MEMORY, MEMORY),
        says="windows in process count inside the pod's memory limit, and would leave nothing of {memory} GiB for the "
        "engine",
        fix="raise resources.memory of prefill, or lower swaPool.memory",
        source=plugin.SOURCE,
        roles=("prefill",),
        shows={"memory": MEMORY_GIB},
    ),
    Rule(
        id="sglang-pool-host-cache",
        when=_USED & flag("enable-hierarchical-cache"),
        sides=(swa_pool.MODE, written("enable-hierarchical-cache")),
        says="windows from the pool were never put behind a prefix that came from the host's memory or from a storage",
        fix="remove enable-hierarchical-cache, or try both together before you rely on them",
        source=plugin.SOURCE,
        severity="warning",
        roles=("prefill",),
    ),
    *swa_pool.rules("sglang-pool", plugin.LOADED),
)
_STORED: Final = (
    Rule(
        id="hicache-storage-windows",
        when=every(
            IS_V41,
            flag("enable-hierarchical-cache"),
            _STORAGE.given,
            ~_STORAGE.isin(_KEEPS_NOTHING),
            ~flag("enable-encoder-swa-bounded-replay"),
        ),
        sides=(_STORAGE, _REPLAY),
        says="windows are stored beside the key/value pages, and a stored prefix is useful only up to a page whose "
        "window is there, too: a store that drops windows earlier loses prefixes that it still holds",
        fix="turn encoder replay on where prefill has it (from 0.5.23 on, on CUDA): then no window is stored, and a "
        "hit runs 128 tokens again; or use a store that keeps everything equally long",
        source="SGLang 0.5.23, mem_cache/hybrid_cache/hybrid_pool_assembler.py and mem_cache/hicache_storage.py",
        severity="warning",
        roles=("prefill", "aggregated"),
    ),
)

RULES: Final = (*_POOL, *_PLUGGED, *_STORED)
RESOLVED: Final = ()

"""The sliding windows of a stored prefix, and the pool of them that SGLang does not have."""

from __future__ import annotations

from typing import Final

from epd_operator.engines import swa_pool
from epd_operator.engines.sglang.base import IS_V41
from epd_operator.engines.sglang.flags import flag, written
from epd_operator.rules.expression import at, every, field_of
from epd_operator.rules.rule import Rule

_STORAGE: Final = written("hicache-storage-backend")
_REPLAY: Final = written("enable-encoder-swa-bounded-replay")
_REPLAY_FIELD: Final = field_of("encoderReplay", "bool")
_REPLAYS: Final = at("prefill", _REPLAY_FIELD) == True  # noqa: E712 - builds an expression
_KEEPS_NOTHING: Final = ("shm", "sim")

_WAY_OUT: Final = (
    "set spec.swaPool.mode to Disabled; give prefill enable-hierarchical-cache and a hicache-storage-backend to find "
    "key/value pages again for days, or use the Reference engine, which has the pool"
)
_POOL: Final = (
    Rule(
        id="swa-pool-encoder-replay",
        when=swa_pool.EXISTS & _REPLAYS,
        sides=(swa_pool.MODE, at("prefill", _REPLAY_FIELD)),
        says="SGLang has no pool of windows: with encoder replay it keeps windows in a ring of its own, and runs the "
        "last 128 tokens of every prefix hit again without looking for them elsewhere; and its decode servers cannot "
        "save what they append",
        fix=_WAY_OUT,
        source="SGLang 0.5.23, mem_cache/hybrid_cache/hybrid_pool_assembler.py, model_executor/encoder_swa_replay.py, "
        "disaggregation/decode_kvcache_offload_manager.py",
        roles=(),
    ),
    Rule(
        id="swa-pool-paged-windows",
        when=swa_pool.EXISTS & ~_REPLAYS,
        sides=(swa_pool.MODE, at("prefill", _REPLAY_FIELD)),
        says="SGLang has no pool of windows: without encoder replay they are pages of its hierarchical cache, where "
        "one that is missing costs the whole prefix in front of it, and not just the 128 tokens that losing a pool may "
        "cost; and its decode servers cannot save what they append",
        fix=_WAY_OUT,
        source="SGLang 0.5.23, mem_cache/hybrid_cache/hybrid_pool_assembler.py, mem_cache/hicache_storage.py, "
        "disaggregation/decode_kvcache_offload_manager.py",
        roles=(),
    ),
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

RULES: Final = (*_POOL, *_STORED)
RESOLVED: Final = ()

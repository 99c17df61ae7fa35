"""The pool of key/value pages and what keeps finished ones: radix cache, unified memory, sharding, external caches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from epd_operator.engines.sglang.attention import DECODE_ATTENTION_BACKEND, PREFILL_ATTENTION_BACKEND, SPECULATES
from epd_operator.engines.sglang.base import IS_DECODE, IS_PD, IS_PREFILL, MODE
from epd_operator.engines.sglang.disaggregation import RETRACTION_BACKUP, STAGING, TRANSFER_BACKEND
from epd_operator.engines.sglang.flags import env, flag, written
from epd_operator.engines.sglang.parallel import ATTN_DP_ENABLED
from epd_operator.engines.sglang.switch import switch
from epd_operator.rules.expression import Opaque, every, named, some, when
from epd_operator.rules.rule import ROLES, Rule

if TYPE_CHECKING:
    from epd_operator.rules.expression import Value

_SOURCE: Final = "SGLang 0.5.23, arg_groups/kv_cache_hook.py"
_SHARDS: Final = "SGLang 0.5.23, arg_groups/kv_shard_hook.py"
_COMPATIBLE: Final = "kv_cache_hook.handle_cache_compatibility"
_UNIFIED: Final = "kv_cache_hook.handle_unified_memory_pool"
_SHARDED: Final = "kv_shard_hook.handle_kv_cache_sharding"
_FP4: Final = ("nvfp4", "fp4_mx_block16", "mxfp8")
_POOL_BACKENDS: Final = ("triton", "fa3", "fa4", "flashinfer", "trtllm_mha")
_VERIFY_BACKENDS: Final = ("triton", "trtllm_mla", "cutedsl_mla", "flashmla", "flashinfer", "fa3", "fa4")
_STATE_BACKENDS: Final = ("triton", "flashinfer")
_STATE_PREFILL_BACKENDS: Final = ("triton", "flashinfer", "flashkda")

_HICACHE: Final = flag("enable-hierarchical-cache")
_STORAGE: Final = written("hicache-storage-backend")
_LINKER: Final = flag("enable-unified-cache-external-linker")
_UNIFIED_MEMORY: Final = flag("enable-unified-memory")
_SHARDING: Final = flag("enable-kv-cache-sharding")
_EMBEDS_ONLY: Final = flag("prefill-only-disable-kv-cache")
_OFFLOAD: Final = flag("disaggregation-decode-enable-offload-kvcache")
_LMCACHE: Final = flag("enable-lmcache")

_HOST_BACKUP: Final = RETRACTION_BACKUP == "host_pool"
_RADIX_OFF_BY_ROLE: Final = named(
    "disable_radix_cache_by_role",
    when(IS_DECODE, ~flag("disaggregation-decode-enable-radix-cache"), flag("disable-radix-cache")),
    written("disable-radix-cache"),
    written("disaggregation-decode-enable-radix-cache"),
)
DISABLE_RADIX_CACHE: Final = named(
    "disable_radix_cache",
    flag("enable-mis") | _RADIX_OFF_BY_ROLE,
    written("disable-radix-cache"),
    written("disaggregation-decode-enable-radix-cache"),
    written("enable-mis"),
)
"""A decode server has a radix cache only when asked for one; scoring many items at once never has."""
RADIX_CACHE_SIDES: Final = (
    MODE,
    written("disable-radix-cache"),
    written("disaggregation-decode-enable-radix-cache"),
)
"""What a user looks at to see why there is a radix cache or none."""


def _tlru_fault(text: Value) -> bool:
    """Whether a configuration of the eviction policy tlru leaves it nothing to protect."""
    try:
        config = json.loads(str(text)) if text is not None else {}
    except (ValueError, RecursionError):
        return False
    config = config or {}
    if not isinstance(config, dict):
        return True
    threshold, estimate = config.get("threshold", 0), config.get("next_prompt_estimate", 0)
    if not isinstance(threshold, int | float) or not isinstance(estimate, int | float):
        return True
    return not 0 <= estimate < threshold


_RADIX: Final = (
    Rule(
        id="hicache-needs-radix-cache",
        when=_HICACHE & DISABLE_RADIX_CACHE,
        sides=(written("enable-hierarchical-cache"), *RADIX_CACHE_SIDES),
        says="a hierarchical cache keeps what the radix cache knows, and this server has no radix cache",
        fix="remove enable-hierarchical-cache; or remove disable-radix-cache, and on decode set "
        "disaggregation-decode-enable-radix-cache",
        source=_SOURCE,
        decided_by=_COMPATIBLE,
        roles=ROLES,
    ),
    Rule(
        id="retraction-backup-host-pool",
        when=_HOST_BACKUP & ~IS_DECODE,
        sides=(RETRACTION_BACKUP, MODE),
        says="only a decode server backs up retracted requests in the host pool, which receiving pages in host memory "
        "implies",
        fix="remove disaggregation-decode-retraction-backup and disaggregation-decode-host-receive-threshold here",
        source=_SOURCE,
        decided_by=_COMPATIBLE,
        roles=ROLES,
    ),
    Rule(
        id="retraction-backup-dcp",
        when=every(_HOST_BACKUP, IS_DECODE, flag("dcp-size") > 1),
        sides=(RETRACTION_BACKUP, written("dcp-size")),
        says="the host pool backs up no retracted requests under decode context parallelism",
        fix="set dcp-size: 1, or remove disaggregation-decode-retraction-backup and "
        "disaggregation-decode-host-receive-threshold",
        source=_SOURCE,
        decided_by=_COMPATIBLE,
        roles=ROLES,
    ),
    Rule(
        id="retraction-backup-priority",
        when=every(
            _HOST_BACKUP,
            IS_DECODE,
            flag("enable-priority-scheduling"),
            ~flag("disable-priority-preemption"),
        ),
        sides=(RETRACTION_BACKUP, written("enable-priority-scheduling")),
        says="the host pool backs up no requests that others of higher priority push out",
        fix="set disable-priority-preemption: true, or remove disaggregation-decode-retraction-backup and "
        "disaggregation-decode-host-receive-threshold",
        source=_SOURCE,
        decided_by=_COMPATIBLE,
        roles=ROLES,
    ),
    Rule(
        id="decode-offload-storage",
        when=_OFFLOAD & some(~IS_DECODE, ~_STORAGE.given, RETRACTION_BACKUP == "host_pool"),
        sides=(written("disaggregation-decode-enable-offload-kvcache"), MODE, _STORAGE, RETRACTION_BACKUP),
        says="offloading pages from decode is for decode servers with a HiCache storage backend, and shares no host "
        "pool "
        "with retracted requests",
        fix="set hicache-storage-backend on decode and leave disaggregation-decode-retraction-backup out, or remove "
        "disaggregation-decode-enable-offload-kvcache",
        source=_SOURCE,
        decided_by=_COMPATIBLE,
        roles=ROLES,
    ),
    Rule(
        id="radix-tlru-config",
        when=(flag("radix-eviction-policy") == "tlru")
        & Opaque(
            "whether the tlru configuration protects anything",
            _tlru_fault,
            (written("radix-eviction-policy-config"),),
            "bool",
            blind=False,
            nullable=False,
        ),
        sides=(written("radix-eviction-policy"), written("radix-eviction-policy-config")),
        says="the eviction policy tlru needs numbers with 0 <= next_prompt_estimate < threshold in its configuration",
        fix='set radix-eviction-policy-config, such as {{"threshold": 4096, "next_prompt_estimate": 512}}',
        source=_SOURCE,
        decided_by=_COMPATIBLE,
        roles=ROLES,
    ),
    Rule(
        id="swa-ratio-range",
        when=written("swa-full-tokens-ratio").given
        & ~((written("swa-full-tokens-ratio") > 0.0) & (written("swa-full-tokens-ratio") <= 1.0)),
        sides=(written("swa-full-tokens-ratio"),),
        says="the sliding-window pool holds more than 0 and at most all of the tokens of the full pool",
        fix="set a number above 0 and up to 1, or leave swa-full-tokens-ratio out",
        source=_SOURCE,
        decided_by=_COMPATIBLE,
        roles=ROLES,
    ),
    Rule(
        id="swa-prefix-tails-range",
        when=written("swa-prefix-tails") < 0,
        sides=(written("swa-prefix-tails"),),
        says="the number of kept prefix tails cannot be negative",
        fix="set swa-prefix-tails to 0 or more",
        source=_SOURCE,
        decided_by=_COMPATIBLE,
        roles=ROLES,
    ),
    Rule(
        id="lmcache-features",
        when=_LMCACHE
        & some(
            _HICACHE,
            _LINKER,
            DISABLE_RADIX_CACHE,
            SPECULATES,
            ATTN_DP_ENABLED,
            flag("dcp-size") > 1,
            flag("enable-streaming-session"),
            flag("hicache-host-memory-mode") == "buffer_only",
            IS_PD,
        ),
        sides=(written("enable-lmcache"), *RADIX_CACHE_SIDES, written("enable-hierarchical-cache")),
        says="LMCache works on aggregated servers with a radix cache, and without hierarchical cache, external linker, "
        "speculative decoding, attention DP, DCP, streaming sessions or buffer_only host memory",
        fix="remove enable-lmcache, or what it does not work with",
        source=_SOURCE,
        decided_by=_COMPATIBLE,
        roles=ROLES,
    ),
)

_POOLS: Final = (
    Rule(
        id="prefill-kv-dequant-dtype",
        when=~(flag("prefill-kv-cache-dequant-dtype") == "auto") & ~(flag("kv-cache-dtype") == "nvfp4"),
        sides=(written("prefill-kv-cache-dequant-dtype"), written("kv-cache-dtype")),
        says="a dtype to read NVFP4 pages in means nothing without NVFP4 pages",
        fix="remove prefill-kv-cache-dequant-dtype",
        source=_SOURCE,
        decided_by="kv_cache_hook.handle_nvfp4_prefill_kv_dequant_dtype",
        roles=ROLES,
    ),
    Rule(
        id="kv-cache-off-conditions",
        when=_EMBEDS_ONLY
        & some(
            ~flag("is-embedding"),
            flag("kv-cache-dtype").isin(_FP4),
            ~(written("chunked-prefill-size") == -1),
            ~_RADIX_OFF_BY_ROLE,
            flag("attn-cp-size") > 1,
            flag("enable-prefill-cp"),
            flag("enable-hisparse"),
        ),
        sides=(written("prefill-only-disable-kv-cache"), written("chunked-prefill-size"), _RADIX_OFF_BY_ROLE),
        says="a server without KV pages can only embed: it needs is-embedding, chunked-prefill-size -1, "
        "disable-radix-cache, and no FP4 or MXFP8 pages, context parallelism or HiSparse",
        fix="remove prefill-only-disable-kv-cache",
        source=_SOURCE,
        decided_by="kv_cache_hook.validate_prefill_only_disable_kv_cache_args",
        roles=ROLES,
    ),
    Rule(
        id="kv-cache-off-attention",
        when=_EMBEDS_ONLY & ~PREFILL_ATTENTION_BACKEND.isin(("fa3", "fa4")),
        sides=(written("prefill-only-disable-kv-cache"), PREFILL_ATTENTION_BACKEND),
        says="only the attention back ends fa3 and fa4 run without KV pages, and DeepSeek-V4.1 runs on dsv4",
        fix="remove prefill-only-disable-kv-cache",
        source=_SOURCE,
        decided_by="kv_cache_hook.handle_prefill_only_disable_kv_cache",
        roles=ROLES,
    ),
    Rule(
        id="page-major-needs-unified-memory",
        when=flag("enable-page-major-kv-layout") & ~_UNIFIED_MEMORY,
        sides=(written("enable-page-major-kv-layout"), written("enable-unified-memory")),
        says="the page-major layout exists only inside unified memory",
        fix="remove enable-page-major-kv-layout",
        source=_SOURCE,
        decided_by="kv_cache_hook.handle_page_major_kv_layout",
        roles=ROLES,
    ),
    Rule(
        id="unified-memory-attention",
        when=_UNIFIED_MEMORY
        & some(
            ~PREFILL_ATTENTION_BACKEND.isin(_POOL_BACKENDS),
            ~DECODE_ATTENTION_BACKEND.isin(_POOL_BACKENDS),
            ~written("linear-attn-decode-backend").otherwise(flag("linear-attn-backend")).isin(_STATE_BACKENDS),
            ~written("linear-attn-prefill-backend")
            .otherwise(flag("linear-attn-backend"))
            .isin(_STATE_PREFILL_BACKENDS),
            ~(flag("mamba-backend") == "triton"),
        ),
        sides=(written("enable-unified-memory"), PREFILL_ATTENTION_BACKEND, DECODE_ATTENTION_BACKEND),
        says="unified memory does not support the attention back end dsv4, on which DeepSeek-V4.1 runs",
        fix="remove enable-unified-memory",
        source=_SOURCE,
        decided_by="kv_cache_hook.handle_page_major_kv_layout",
        roles=ROLES,
    ),
    Rule(
        id="unified-memory-features",
        when=_UNIFIED_MEMORY
        & some(
            IS_PD & ~(TRANSFER_BACKEND == "mooncake"),
            IS_PD & SPECULATES,
            IS_PD & switch("SGLANG_DISABLE_LAZY_COMPACTION"),
            IS_PD & _OFFLOAD,
            _LMCACHE,
            _LINKER,
        ),
        sides=(written("enable-unified-memory"), TRANSFER_BACKEND, written("speculative-algorithm")),
        says="unified memory excludes LMCache and the external linker; between prefill and decode it needs mooncake "
        "and "
        "lazy compaction, without speculative decoding and without offloading from decode",
        fix="remove enable-unified-memory",
        source=_SOURCE,
        decided_by=_UNIFIED,
        roles=ROLES,
    ),
    Rule(
        id="unified-memory-draft-attention",
        when=_UNIFIED_MEMORY
        & SPECULATES
        & (~PREFILL_ATTENTION_BACKEND.isin(_VERIFY_BACKENDS) | ~DECODE_ATTENTION_BACKEND.isin(_VERIFY_BACKENDS)),
        sides=(written("enable-unified-memory"), written("speculative-algorithm"), PREFILL_ATTENTION_BACKEND),
        says="drafts in unified memory are verified by some attention back ends only, and dsv4 is not one of them",
        fix="remove enable-unified-memory or speculative-algorithm",
        source=_SOURCE,
        decided_by="kv_cache_hook._assert_spec_verify_backends",
        roles=ROLES,
    ),
    Rule(
        id="unified-memory-dcp",
        when=_UNIFIED_MEMORY & (flag("dcp-size") > 1),
        sides=(written("enable-unified-memory"), written("dcp-size")),
        says="unified memory with decode context parallelism is for MLA models, and DeepSeek-V4.1 does not count as "
        "one",
        fix="remove enable-unified-memory or set dcp-size: 1",
        source=_SOURCE,
        decided_by="kv_cache_hook._validate_unified_memory_dcp",
        roles=ROLES,
    ),
)

_SHARD_RULES: Final = (
    Rule(
        id="kv-sharding-prefill-only",
        when=_SHARDING & ~IS_PREFILL,
        sides=(written("enable-kv-cache-sharding"), MODE),
        says="a rank that holds a part of every page can only prefill",
        fix="remove enable-kv-cache-sharding from this server",
        source=_SHARDS,
        decided_by=_SHARDED,
        roles=ROLES,
    ),
    Rule(
        id="kv-sharding-features",
        when=_SHARDING
        & some(
            SPECULATES,
            written("dllm-algorithm").given,
            written("radix-cache-backend").given,
            ~_RADIX_OFF_BY_ROLE
            & env("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND").given
            & ~(env("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND") == "python"),
            _LINKER,
            flag("enable-streaming-session"),
            flag("enable-session-radix-cache"),
            flag("enable-flexkv"),
            _UNIFIED_MEMORY,
            flag("dcp-size") > 1,
            _HICACHE & _STORAGE.given,
            _LMCACHE,
            flag("enable-hisparse"),
            flag("enable-dynamic-chunking") & (flag("pp-size") > 1),
            flag("enable-two-batch-overlap"),
        ),
        sides=(written("enable-kv-cache-sharding"), written("speculative-algorithm"), _STORAGE, written("dcp-size")),
        says="KV sharding excludes speculative and diffusion decoding, other radix caches and tree cores, the external "
        "linker, sessions, FlexKV, LMCache, unified memory, DCP, HiCache storage, HiSparse and two-batch overlap",
        fix="remove enable-kv-cache-sharding",
        source=_SHARDS,
        decided_by=_SHARDED,
        roles=ROLES,
    ),
    Rule(
        id="kv-sharding-attention",
        when=_SHARDING & ~(PREFILL_ATTENTION_BACKEND == "fa3"),
        sides=(written("enable-kv-cache-sharding"), PREFILL_ATTENTION_BACKEND),
        says="KV sharding does not support the attention back end dsv4, on which DeepSeek-V4.1 runs",
        fix="remove enable-kv-cache-sharding",
        source=_SHARDS,
        decided_by="kv_shard_hook.validate_kv_shard_attention_backend",
        roles=ROLES,
    ),
    Rule(
        id="kv-sharding-layout",
        when=_SHARDING
        & some(
            ~TRANSFER_BACKEND.isin(("mooncake", "nixl")),
            STAGING,
            ~flag("enable-prefill-cp"),
            flag("tp-size") <= 1,
            written("chunked-prefill-size") <= 0,
        ),
        sides=(written("enable-kv-cache-sharding"), TRANSFER_BACKEND, written("enable-prefill-cp")),
        says="KV sharding needs mooncake or nixl without staging buffers, prefill context parallelism over more than "
        "one "
        "GPU, and chunked prefill",
        fix="remove enable-kv-cache-sharding",
        source=_SHARDS,
        decided_by=_SHARDED,
        roles=ROLES,
    ),
)

RULES: Final = (*_RADIX, *_POOLS, *_SHARD_RULES)
RESOLVED: Final = (DISABLE_RADIX_CACHE,)

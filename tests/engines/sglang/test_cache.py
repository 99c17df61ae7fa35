"""Pages of keys and values: radix cache, unified memory, sharding, pools that DeepSeek-V4.1 cannot use."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, resolved

PREFILL, DECODE = "--disaggregation-mode prefill", "--disaggregation-mode decode"
HICACHE = "--enable-hierarchical-cache"
RADIX = "--disaggregation-decode-enable-radix-cache"
OFFLOAD = "--disaggregation-decode-enable-offload-kvcache"
HOST_POOL = "--disaggregation-decode-retraction-backup host_pool"
FA3 = "--prefill-attention-backend fa3 --decode-attention-backend fa3"
UNIFIED = f"--enable-unified-memory {FA3}"
SHARDED = f"{PREFILL} --enable-kv-cache-sharding"
CP = "--enable-prefill-cp --cp-strategy interleave"
TLRU = "--radix-eviction-policy tlru --radix-eviction-policy-config"


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        (HICACHE, set()),
        (f"{HICACHE} --disable-radix-cache", {"hicache-needs-radix-cache"}),
        (f"{DECODE} {HICACHE}", {"hicache-needs-radix-cache"}),
        (f"{DECODE} {HICACHE} {RADIX}", set()),
        (f"{DECODE} {HOST_POOL}", set()),
        (HOST_POOL, {"retraction-backup-host-pool"}),
        (f"{DECODE} {HOST_POOL} --enable-priority-scheduling", {"retraction-backup-priority"}),
        (f"{DECODE} {HOST_POOL} --enable-priority-scheduling --disable-priority-preemption", set()),
        (f"{DECODE} {OFFLOAD}", {"decode-offload-storage"}),
        (f"{DECODE} {OFFLOAD} --hicache-storage-backend file", set()),
        (f"{PREFILL} {OFFLOAD} --hicache-storage-backend file", {"decode-offload-storage"}),
        (f"{DECODE} {OFFLOAD} --hicache-storage-backend file {HOST_POOL}", {"decode-offload-storage"}),
        ("--radix-eviction-policy tlru", {"radix-tlru-config"}),
        (f'{TLRU} {{"threshold":2,"next_prompt_estimate":1}}', set()),
        (f'{TLRU} {{"threshold":2,"next_prompt_estimate":2}}', {"radix-tlru-config"}),
        (f'{TLRU} {{"threshold":2,"next_prompt_estimate":-1}}', {"radix-tlru-config"}),
        (f'{TLRU} {{"threshold":"2"}}', {"radix-tlru-config"}),
        (f"{TLRU} [2]", {"radix-tlru-config"}),
        ("--swa-full-tokens-ratio 1", set()),
        ("--swa-full-tokens-ratio 0", {"swa-ratio-range"}),
        ("--swa-full-tokens-ratio 1.01", {"swa-ratio-range"}),
        ("--swa-prefix-tails 0", set()),
        ("--swa-prefix-tails -1", {"swa-prefix-tails-range"}),
        ("--enable-lmcache", set()),
        (f"{PREFILL} --enable-lmcache", {"lmcache-features"}),
        ("--enable-lmcache --attn-dp-size 4", {"lmcache-features"}),
        ("--enable-lmcache --speculative-algorithm DSPARK", {"lmcache-features"}),
    ],
)
def test_what_keeps_pages(line: str, rules: set[str]) -> None:
    assert errors(line) == rules


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("--prefill-kv-cache-dequant-dtype fp8_e4m3", {"prefill-kv-dequant-dtype"}),
        ("--prefill-kv-cache-dequant-dtype auto", set()),
        ("--enable-page-major-kv-layout", {"page-major-needs-unified-memory"}),
        ("--enable-unified-memory", {"unified-memory-attention"}),
        (UNIFIED, set()),
        (f"{UNIFIED} --linear-attn-backend cutedsl", {"unified-memory-attention"}),
        (f"{UNIFIED} --linear-attn-backend cutedsl --linear-attn-decode-backend triton", {"unified-memory-attention"}),
        (f"{UNIFIED} --linear-attn-prefill-backend flashkda", set()),
        (f"{DECODE} {UNIFIED} --disaggregation-transfer-backend nixl", {"unified-memory-features"}),
        (f"{UNIFIED} --enable-lmcache", {"unified-memory-features"}),
        (f"{UNIFIED} --dcp-size 2", {"unified-memory-dcp"}),
        (f"{UNIFIED} --speculative-algorithm DSPARK", set()),
        ("--enable-kv-cache-sharding", {"kv-sharding-prefill-only", "kv-sharding-attention", "kv-sharding-layout"}),
        (SHARDED, {"kv-sharding-attention", "kv-sharding-layout"}),
        (f"{SHARDED} {CP} --prefill-attention-backend fa3", set()),
        (f"{SHARDED} {CP} --prefill-attention-backend fa3 --enable-flexkv", {"kv-sharding-features"}),
        (f"{SHARDED} {CP} --prefill-attention-backend fa3 --chunked-prefill-size -1", {"kv-sharding-layout"}),
        ("--prefill-only-disable-kv-cache", {"kv-cache-off-conditions", "kv-cache-off-attention"}),
        (
            "--prefill-only-disable-kv-cache --is-embedding --chunked-prefill-size -1 --disable-radix-cache",
            {"kv-cache-off-attention"},
        ),
    ],
)
def test_pools(line: str, rules: set[str]) -> None:
    assert errors(line) == rules


def test_tree_core_matters_to_sharding_only_with_a_radix_cache() -> None:
    rust = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "rust"}
    line = f"{SHARDED} {CP} --prefill-attention-backend fa3"
    assert errors(line, env=rust) == {"kv-sharding-features"}
    assert errors(f"{line} --disable-radix-cache", env=rust) == set()


@pytest.mark.parametrize(
    ("line", "off"),
    [
        ("", False),
        (PREFILL, False),
        (DECODE, True),
        (f"{DECODE} {RADIX}", False),
        (f"{DECODE} {RADIX} --disable-radix-cache", False),
        (f"{PREFILL} {RADIX} --disable-radix-cache", True),
    ],
)
def test_radix_cache_follows_the_role(line: str, *, off: bool) -> None:
    assert resolved("disable_radix_cache", line) is off

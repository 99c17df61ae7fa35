"""The hierarchical cache: which layout it really gets, and what refuses it."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, judged, resolved

PREFILL, DECODE = "--disaggregation-mode prefill", "--disaggregation-mode decode"
HICACHE = "--enable-hierarchical-cache"
MOONCAKE = f"{HICACHE} --hicache-mem-layout layer_first --hicache-storage-backend mooncake"
LINKER = "--enable-unified-cache-external-linker"
BUFFER = "--hicache-host-memory-mode buffer_only"
OWN = "--unified-cache-external-linker-backend dynamic --unified-cache-external-linker-config"
RECEIVE = "--disaggregation-decode-host-receive-threshold 0.5"


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("--hicache-host-memory-fraction 1", set()),
        ("--hicache-host-memory-fraction 0", {"hicache-memory-fraction-range"}),
        ("--hicache-host-memory-fraction 1.1", {"hicache-memory-fraction-range"}),
        (BUFFER, set()),
        (f"{HICACHE} {BUFFER}", {"hicache-buffer-storage"}),
        (f"{HICACHE} {BUFFER} --hicache-storage-backend file", set()),
        (f"{DECODE} {BUFFER} --hicache-storage-backend file", {"hicache-buffer-decode"}),
        (f"{HICACHE} --dcp-size 2", {"hicache-dcp"}),
        (f"{DECODE} {RECEIVE}", set()),
        (f"{DECODE} {RECEIVE} --hicache-storage-backend file", set()),
        (f"{DECODE} {RECEIVE} --hicache-storage-backend mooncake", {"hicache-host-receive-layout"}),
        (LINKER, set()),
        (f"{LINKER} {HICACHE}", {"linker-features"}),
        (f"{LINKER} --hicache-storage-backend file", {"linker-storage"}),
        (f"{LINKER} --disable-radix-cache", {"linker-radix-cache"}),
        (f"{DECODE} {LINKER}", {"linker-radix-cache"}),
        (f"{LINKER} --enable-linker-mla-dedup", set()),
        (f"{LINKER} --enable-linker-mla-dedup --unified-cache-external-linker-backend mori", {"linker-mla-dedup"}),
        ("--enable-linker-mla-dedup", {"linker-mla-dedup"}),
        ("--unified-cache-external-linker-config [1]", {"linker-config-object"}),
        (f'{OWN} {{"linker":"a","linker_module_path":"b"}}', set()),
        (f'{OWN} {{"linker":"a"}}', {"linker-config-dynamic"}),
        (f'{OWN} {{"linker":"a","linker_module_path":"b","other":1}}', {"linker-config-dynamic"}),
        (f"{OWN} null", set()),
        (f"{LINKER} {OWN} null", {"linker-config-dynamic"}),
    ],
)
def test_refusals(line: str, rules: set[str]) -> None:
    assert errors(line) == rules


@pytest.mark.parametrize(
    ("line", "layout", "copies"),
    [
        (HICACHE, "page_first", "kernel"),
        (f"{HICACHE} --hicache-io-backend direct", "page_first_direct", "direct"),
        (f"{HICACHE} --hicache-mem-layout page_first_direct", "page_first_direct", "direct"),
        (f"{HICACHE} --hicache-mem-layout layer_first", "layer_first", "kernel"),
        (MOONCAKE, "page_first", "kernel"),
        (
            f"{MOONCAKE} --hicache-io-backend direct",
            "page_first_direct",
            "direct",
        ),
        ("--hicache-mem-layout page_first_direct", "page_first_direct", "kernel"),
        (f"{DECODE} {RECEIVE}", "layer_first", "kernel"),
        (f"{DECODE} --hicache-io-backend direct", "page_first_direct", "direct"),
        (
            f"{DECODE} --disaggregation-decode-retraction-backup cpu_tensor --hicache-io-backend direct",
            "page_first",
            "direct",
        ),
    ],
)
def test_layout_and_copies_are_made_to_fit(line: str, layout: str, copies: str) -> None:
    assert (resolved("hicache_mem_layout", line), resolved("hicache_io_backend", line)) == (layout, copies)


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        (f"{HICACHE} --hicache-mem-layout page_first --hicache-io-backend direct", {"hicache-layout-changed"}),
        (f"{HICACHE} --hicache-mem-layout page_first_direct --hicache-io-backend kernel", {"hicache-io-changed"}),
        (f"{HICACHE} --hicache-mem-layout layer_first --hicache-io-backend kernel", set()),
        (
            f"{HICACHE} {BUFFER} --hicache-storage-backend file --hicache-write-policy write_back",
            {"hicache-write-policy-changed"},
        ),
    ],
)
def test_silent_changes_are_told(line: str, warned: set[str]) -> None:
    judgement = judged(line)
    assert judgement.accepted
    assert {finding.rule for finding in judgement.findings if finding.rule.endswith("-changed")} == warned

"""What the engine lets through at launch and dies of later: refused on a spec, warned of on a command line."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, judged, severities, warnings

PREFILL = "--disaggregation-mode prefill"
CP = "--enable-prefill-cp --cp-strategy interleave"
COMPLETE = "--disaggregation-decode-allocation-policy prefill_complete"


@pytest.mark.parametrize(
    ("line", "rule", "warned"),
    [
        ("--max-running-requests 0", "sizes-positive", True),
        ("--max-total-tokens 0", "sizes-positive", True),
        ("--max-prefill-tokens -1", "sizes-positive", True),
        ("--context-length 0", "sizes-positive", True),
        ("--max-running-requests 1 --max-total-tokens 1 --max-prefill-tokens 1", "sizes-positive", False),
        ("--mem-fraction-static nan", "memory-share-range", True),
        ("--ep-size 3", "expert-ranks-divide-tp", True),
        ("--ep-size 8", "expert-ranks-divide-tp", True),
        ("--ep-size 2", "expert-ranks-divide-tp", False),
        ("--ep-size 3 --moe-a2a-backend deepep", "expert-ranks-divide-tp", False),
        ("--ep-size 0", "expert-ranks-divide-tp", False),
        ("--dcp-size 3", "decode-cp-divides-tp", True),
        ("--dcp-size 2", "decode-cp-divides-tp", False),
        (f"{PREFILL} {CP} --tp-size 8 --nnodes 2", "prefill-cp-nodes", True),
        (f"{PREFILL} {CP} --tp-size 8", "prefill-cp-nodes", False),
        (f"{PREFILL} --tp-size 8 --nnodes 2", "prefill-cp-nodes", False),
        (f"{PREFILL} --tp-size 1 {COMPLETE}", "decode-allocation-window", True),
        (f"{PREFILL} --tp-size 1", "decode-allocation-window", False),
    ],
)
def test_launch_passes_and_loading_fails(line: str, rule: str, warned: bool) -> None:
    assert not errors(line)
    assert (rule in warnings(line)) == warned


def test_a_policy_that_is_refused_at_launch_is_told_once() -> None:
    rules = [finding.rule for finding in judged(f"{PREFILL} {COMPLETE}").findings if "allocation" in finding.rule]
    assert rules == ["decode-allocation-after-prefill"]


@pytest.mark.parametrize(
    ("layout", "platform", "more", "rule"),
    [
        ("v42", "cuda-sm90", "", "kv-layout-unknown"),
        ("", "cuda-sm90", "", "kv-layout-unknown"),
        ("v42", "cuda-sm100", "", "kv-layout-unknown"),
        ("v42", "cuda-sm100", "--dsv4-attn-backend flashmla_mega", ""),
        ("V4", "cuda-sm90", "", ""),
        ("auto", "cuda-sm90", "", ""),
        ("v41", "cuda-sm90", "", "kv-layout-hardware"),
        ("v41_new", "cuda-sm90", "", "kv-layout-hardware"),
        ("v41_new", "cuda-sm100", "", ""),
        ("v41", "hip-gfx950", "", ""),
        ("v41_new", "hip-gfx950", "", "kv-layout-hardware"),
        ("v41", "cuda-sm100", "--dsv4-attn-backend trtllm", "kv-layout-hardware"),
        ("v4", "cuda-sm100", "--dsv4-attn-backend trtllm", ""),
    ],
)
def test_layouts_of_pages(layout: str, platform: str, more: str, rule: str) -> None:
    actual = warnings(more, platform, {"SGLANG_DSV4_KV_LAYOUT": layout})
    assert {one for one in actual if one.startswith("kv-layout")} == ({rule} if rule else set())


@pytest.mark.parametrize(
    ("layout", "platform", "main", "warned"),
    [
        ("v4", "cuda-sm90", "v4", True),
        ("fp8", "cuda-sm90", "v4", False),
        ("FP4", "cuda-sm90", "v4", True),
        ("fp4", "cuda-sm90", "auto", False),
        ("v4", "cuda-sm90", "auto", False),
        ("fp4", "cuda-sm100", "v41", False),
        ("fp5", "cuda-sm100", "v41", True),
    ],
)
def test_layouts_of_compressed_pages(layout: str, platform: str, main: str, warned: bool) -> None:
    env = {"SGLANG_DSV4_KV_LAYOUT": main, "SGLANG_DSV4_COMPRESSED_KV_LAYOUT": layout}
    assert ("kv-layout-compressed" in warnings("", platform, env)) == warned


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("--tp-size 8", False),
        ("--tp-size 16", True),
        ("--tp-size 6", True),
        ("--tp-size 3", True),
        ("--tp-size 16 --attn-dp-size 2", False),
        ("--tp-size 12 --attn-dp-size 2", True),
        (f"--tp-size 8 {CP}", False),
    ],
)
def test_attention_ranks_hold_whole_groups(line: str, warned: bool) -> None:
    assert ("attention-tp-groups" in warnings(line)) == warned


def test_operator_only_rules_refuse_a_spec() -> None:
    assert severities({"P/args/ep-size": 3})["expert-ranks-divide-tp"] == "error"
    assert severities({"P/args/max-total-tokens": 0})["sizes-positive"] == "error"
    assert severities({"P/env/SGLANG_DSV4_KV_LAYOUT": "v42", "D/env/SGLANG_DSV4_KV_LAYOUT": "v42"}) == {
        "kv-layout-unknown": "error"
    }

"""How many tokens and requests a server takes at once."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import judged, resolved


@pytest.mark.parametrize(
    ("line", "platform", "chunk"),
    [
        ("", "cuda-sm90", 8192),
        ("", "cuda-sm100", 16384),
        ("", "hip-gfx950", 16384),
        ("--chunked-prefill-size 4096", "cuda-sm90", 4096),
        ("--attn-dp-size 4", "cuda-sm90", 2048),
        ("--attn-dp-size 4 --chunked-prefill-size 1000", "cuda-sm90", 250),
        ("--attn-dp-size 4 --chunked-prefill-size -1", "cuda-sm90", -1),
        ("--attn-dp-size 4 --chunked-prefill-size -5", "cuda-sm90", -2),
        ("--dp-size 4", "cuda-sm90", 8192),
        ("--dwdp-size 4", "cuda-sm90", 2048),
        ("--enable-mis", "cuda-sm90", -1),
    ],
)
def test_chunk(line: str, platform: str, chunk: int) -> None:
    assert resolved("chunked_prefill_size", line, platform) == chunk


def test_requests() -> None:
    assert resolved("max_running_requests", "") == 256
    assert resolved("max_running_requests", "--max-running-requests 0") == 0
    assert resolved("max_prefill_tokens", "--max-prefill-tokens 8k") == 8000


@pytest.mark.parametrize(
    ("share", "warned"), [("0", True), ("1", True), ("1.5", True), ("-0.1", True), ("0.01", False), ("0.99", False)]
)
def test_memory_share(share: str, warned: bool) -> None:
    judgement = judged(f"--mem-fraction-static {share}")
    assert judgement.accepted
    assert ("memory-share-range" in {finding.rule for finding in judgement.findings}) is warned

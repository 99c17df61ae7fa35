"""How large the CUDA graphs are, and sizes that are none."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, resolved

CONFIG = "--cuda-graph-config"
WIDE = "--attn-dp-size 4"
DEEPEP = "--moe-a2a-backend deepep --cuda-graph-backend-prefill breakable"


@pytest.mark.parametrize(
    ("line", "platform", "largest"),
    [
        ("", "cuda-sm90", 512),
        ("--tp-size 2", "cuda-sm90", 256),
        ("--tp-size 2", "cuda-sm100", 512),
        ("--max-running-requests 64", "cuda-sm90", 64),
        ("--max-running-requests 1024", "cuda-sm90", 512),
        ("--max-running-requests 64 --cuda-graph-max-bs-decode 128", "cuda-sm90", 128),
        (f'--cuda-graph-max-bs-decode 128 {CONFIG} {{"decode":{{"max_bs":32}}}}', "cuda-sm90", 32),
        (f'--cuda-graph-max-bs-decode 128 {CONFIG} {{"prefill":{{"max_bs":32}}}}', "cuda-sm90", 128),
        ("--cuda-graph-max-bs-decode 128 --cuda-graph-bs-decode 1 700 8", "cuda-sm90", 700),
        (f'--cuda-graph-bs-decode 1 700 {CONFIG} {{"decode":{{"bs":[1,9]}}}}', "cuda-sm90", 9),
    ],
)
def test_largest_decode_batch(line: str, platform: str, largest: int) -> None:
    assert resolved("cuda_graph_decode_max_bs", line, platform) == largest


@pytest.mark.parametrize(
    ("line", "longest"),
    [
        ("", 8192),
        ("--max-total-tokens 4096", 4096),
        ("--cuda-graph-max-bs-prefill 9000", 9000),
        ("--enable-mis", 8192),
        (DEEPEP, 2048),
        (f"{DEEPEP} --attn-dp-size 4 --chunked-prefill-size 4096", 1024),
        (f"{DEEPEP} --cuda-graph-max-bs-prefill 9000", 8704),
        (f"{DEEPEP} --cuda-graph-max-bs-prefill 4", 8),
        (f"{DEEPEP} --cuda-graph-max-bs-prefill 0", 2048),
        (f"{DEEPEP} --cuda-graph-max-bs-prefill 30", 32),
        (f"{DEEPEP} --cuda-graph-max-bs-prefill 3", 3),
        (f"{DEEPEP} --cuda-graph-bs-prefill 4 100", 104),
        (f"{DEEPEP} --cuda-graph-bs-prefill 8 96", 8192),
        (f'{DEEPEP} {CONFIG} {{"prefill":{{"bs":[4,"12"]}}}}', 8),
        (f'{DEEPEP} --cuda-graph-bs-prefill 8 96 {CONFIG} {{"prefill":{{"bs":[4,12]}}}}', 16),
        (f"{WIDE} --cuda-graph-backend-prefill breakable", 2048),
        (f"{WIDE} --cuda-graph-backend-prefill breakable --max-total-tokens 1000", 1000),
        (f"{WIDE} --cuda-graph-backend-prefill breakable --cuda-graph-max-bs-prefill 8000", 8000),
        (f"{WIDE} --cuda-graph-backend-prefill disabled", 8192),
    ],
)
def test_longest_prefill_graph(line: str, longest: int) -> None:
    assert resolved("cuda_graph_prefill_max_bs", line) == longest


@pytest.mark.parametrize(
    ("config", "rules"),
    [
        ('{"decode":{"max_bs":"64"}}', {"graph-config-decode-size"}),
        ('{"decode":{"max_bs":64.5}}', {"graph-config-decode-size"}),
        ('{"decode":{"max_bs":null}}', set()),
        ('{"decode":{"max_bs":"64","bs":[1,8]}}', set()),
        ('{"prefill":{"max_bs":"64"}}', {"graph-config-prefill-size"}),
        ('{"prefill":{"max_bs":64}}', set()),
        ('{"decode":{"bs":[]}}', {"graph-config-decode-sizes"}),
        ('{"decode":{"bs":8}}', {"graph-config-decode-sizes"}),
        ('{"decode":{"bs":[1,"8"]}}', {"graph-config-decode-sizes"}),
        ('{"decode":{"bs":[8]}}', set()),
        ('{"decode":{"bs":null}}', set()),
    ],
)
def test_sizes_are_numbers(config: str, rules: set[str]) -> None:
    assert errors(f"{CONFIG} {config}") == rules

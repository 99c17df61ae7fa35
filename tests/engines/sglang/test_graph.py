"""CUDA graphs: who is heard when several flags speak, and what a role does when none does."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, resolved

CONFIG = "--cuda-graph-config"


@pytest.mark.parametrize(
    ("line", "prefill", "decode"),
    [
        ("", "disabled", "full"),
        ("--disaggregation-mode prefill", "disabled", "disabled"),
        ("--disaggregation-mode decode", "disabled", "full"),
        ("--disaggregation-mode prefill --cuda-graph-backend-decode full", "disabled", "full"),
        ("--disable-cuda-graph", "disabled", "disabled"),
        ("--disable-decode-cuda-graph", "disabled", "disabled"),
        ("--disable-cuda-graph --cuda-graph-backend-prefill breakable", "breakable", "disabled"),
        (f'--cuda-graph-backend-prefill breakable {CONFIG} {{"prefill":{{"backend":"full"}}}}', "full", "full"),
        (f'--cuda-graph-backend-prefill breakable {CONFIG} {{"prefill":{{"max_bs":64}}}}', "breakable", "full"),
        ("--moe-a2a-backend deepep --deepep-mode normal", "disabled", "disabled"),
        ("--moe-a2a-backend deepep --deepep-mode auto", "disabled", "full"),
    ],
)
def test_precedence(line: str, prefill: str, decode: str) -> None:
    assert (resolved("cuda_graph_prefill", line), resolved("cuda_graph_decode", line)) == (prefill, decode)


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        (f'{CONFIG} {{"decode":{{"backend":"eager"}}}}', {"graph-backend"}),
        (f'{CONFIG} {{"prefill":{{"backend":null}}}}', {"graph-backend"}),
        (f'{CONFIG} {{"prefill":{{}}}}', set()),
        ("--cuda-graph-prefill-max-context 1048576", set()),
        ("--cuda-graph-prefill-max-context 1048577", {"graph-context"}),
        ("--cuda-graph-prefill-max-context 0", {"graph-context"}),
        ("--cuda-graph-prefill-max-context 1000 --context-length 1023", {"graph-context"}),
        ("--cuda-graph-prefill-max-context 1000 --context-length 1024", set()),
        (f'--cuda-graph-prefill-max-context 0 {CONFIG} {{"prefill":{{"max_context_size":null}}}}', set()),
        (f'{CONFIG} {{"prefill":{{"max_context_size":"far"}}}}', {"graph-context"}),
    ],
)
def test_limits(line: str, rules: set[str]) -> None:
    assert errors(line) == rules

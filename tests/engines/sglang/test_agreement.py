"""What prefill and decode must share is compared as it resolves, and told once, by its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.engines.sglang.verdict import judged_spec, severities

if TYPE_CHECKING:
    from collections.abc import Mapping

DRAFTS = {"P/args/speculative-algorithm": "DSPARK", "D/args/speculative-algorithm": "DSPARK"}
DRAFT = "args/speculative-draft-model-path"
BOOTSTRAP = "env/SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"
WAITING = "env/SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
LAYOUT = "env/SGLANG_DSV4_KV_LAYOUT"


def _pairs(changes: Mapping[str, Any]) -> dict[str, str]:
    return {rule: severity for rule, severity in severities(changes).items() if rule.startswith("pair-")}


@pytest.mark.parametrize(
    "changes",
    [
        {"P/args/context-length": 1048576},
        {"P/args/quantization": "fp8"},
        {"P/args/json-model-override-args": "{}"},
        {"P/args/load-format": "safetensors"},
        {f"P/{BOOTSTRAP}": "300"},
        {f"D/{WAITING}": "300"},
        {f"P/{WAITING}": "900"},
        {f"D/{BOOTSTRAP}": "900"},
        {f"P/{BOOTSTRAP}": "900", f"D/{WAITING}": "900"},
        {**DRAFTS, f"P/{DRAFT}": "deepseek-ai/DeepSeek-V4.1-Flash"},
        {f"P/{LAYOUT}": "v41"},
        {f"P/{LAYOUT}": "V41", f"D/{LAYOUT}": "auto"},
    ],
)
def test_a_default_spelled_out_differs_from_nothing(changes: Mapping[str, Any]) -> None:
    assert _pairs(changes) == {}


@pytest.mark.parametrize(
    ("changes", "pairs"),
    [
        ({"P/args/context-length": 131072}, {"pair-context-length": "warning"}),
        ({"P/args/load-format": "dummy"}, {"pair-load-format": "warning"}),
        ({"P/args/json-model-override-args": '{"a": 1}'}, {"pair-json-model-override-args": "warning"}),
        ({f"P/{BOOTSTRAP}": "301"}, {"pair-transfer-timeout": "warning"}),
        ({f"D/{WAITING}": "299"}, {"pair-transfer-timeout": "warning"}),
        ({f"P/{BOOTSTRAP}": "900", f"D/{BOOTSTRAP}": "900"}, {"pair-transfer-timeout": "warning"}),
        ({**DRAFTS, f"P/{DRAFT}": "a/b"}, {"pair-draft-model": "warning"}),
        ({"P/args/kv-cache-dtype": "bfloat16"}, {"pair-kv-cache-dtype": "error"}),
        ({f"P/{LAYOUT}": "v4"}, {"pair-kv-layout": "error"}),
        ({f"P/{LAYOUT}": "v41_new"}, {"pair-kv-layout": "error"}),
        ({"P/args/dsv4-attn-backend": "flashmla"}, {"pair-attention-backend": "error"}),
        ({"D/args/speculative-algorithm": "DSPARK"}, {"pair-speculation": "error"}),
        ({"P/args/speculative-algorithm": "DSPARK", "D/args/speculative-algorithm": "dspark"}, {}),
    ],
)
def test_a_difference_is_told_once(changes: Mapping[str, Any], pairs: Mapping[str, str]) -> None:
    assert _pairs(changes) == pairs


def test_a_variable_of_the_other_role_is_not_shown() -> None:
    (finding,) = (one for one in judged_spec({f"P/{BOOTSTRAP}": "900"}).findings if one.rule == "pair-transfer-timeout")
    first, second = finding.sides
    assert str(first) == f"spec.roles.prefill.{BOOTSTRAP.replace('/', '.')} = 900"
    assert str(second) == f"spec.roles.decode.{WAITING.replace('/', '.')} not set, so 300"


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({"model/servedName": "a:b"}, {"structure"}),
        ({"transfer/backend": "fake"}, {"transfer-backend"}),
        ({**DRAFTS, "D/env/SGLANG_RAGGED_VERIFY_MODE": "fast"}, {"speculation-verify-mode"}),
        ({**DRAFTS, "D/env/SGLANG_RAGGED_VERIFY_MODE": "compact"}, {"dspark-disaggregation-verify"}),
        ({"D/args/speculative-algorithm": "dspark"}, {"speculation-kind"}),
        ({f"P/{LAYOUT}": "v42"}, {"kv-layout-unknown"}),
        ({f"P/{LAYOUT}": "v41", "engine/platform": "cuda-sm90"}, {"kv-layout-hardware"}),
    ],
)
def test_one_cause_is_one_finding(changes: Mapping[str, Any], rules: set[str]) -> None:
    assert [finding.rule for finding in judged_spec(changes).errors] == list(rules)

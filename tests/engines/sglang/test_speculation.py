"""DSpark and nothing else: its spellings, its draft, its partners."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, resolved

DSPARK = "--speculative-algorithm DSPARK"
PREFILL, DECODE = "--disaggregation-mode prefill", "--disaggregation-mode decode"
CP = "--enable-prefill-cp --cp-strategy interleave"
DP = "--attn-dp-size 4 --enable-dp-lm-head"
COMPACT = {"SGLANG_RAGGED_VERIFY_MODE": "compact"}
COORDINATED = {"SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION": "1"}


@pytest.mark.parametrize(
    ("line", "env", "rules"),
    [
        (DSPARK, {}, set()),
        ("--speculative-algorithm dspark", {}, {"speculation-kind"}),
        ("--speculative-algorithm NEXTN", {}, {"speculation-kind"}),
        ("--speculative-algorithm EAGLE", {}, {"speculation-eagle-topk"}),
        ("--speculative-algorithm EAGLE --speculative-eagle-topk 1", {}, {"speculation-eagle"}),
        (DSPARK, COMPACT, set()),
        (f"{DSPARK} {PREFILL}", COMPACT, {"dspark-disaggregation-verify"}),
        (DSPARK, {"SGLANG_RAGGED_VERIFY_MODE": "ragged"}, {"speculation-verify-mode"}),
        ("", {"SGLANG_RAGGED_VERIFY_MODE": "ragged"}, set()),
        (f"{DSPARK} {PREFILL} --disaggregation-transfer-backend mooncake_tcp", {}, set()),
        (f"{DSPARK} {DECODE} --disaggregation-transfer-backend mori", {}, {"dspark-disaggregation-transfer"}),
        (f"{DSPARK} {PREFILL} {CP}", {}, set()),
        (f"{DSPARK} {PREFILL} --attn-cp-size 4", {}, {"dspark-disaggregation-context-parallel"}),
        (f"{DSPARK} {DECODE} {CP}", {}, {"dspark-disaggregation-context-parallel"}),
        (f"{DSPARK} {DECODE} --dcp-size 2", {}, {"dspark-disaggregation-dcp"}),
        (f"{DSPARK} {DP}", {}, set()),
        (f"{DSPARK} {DP}", COMPACT, set()),
        (f"{DSPARK} {DP} --moe-a2a-backend megamoe", COMPACT, {"dspark-dp-verify"}),
        (f"{DSPARK} --attn-dp-size 4", {}, {"dspark-dp-lm-head"}),
        (f"{DSPARK} {DP}", COMPACT | COORDINATED, {"dspark-dp-verify"}),
        (DSPARK, COORDINATED, set()),
        ("", COORDINATED, {"speculation-prefill-coordination"}),
        (f"{DSPARK} --speculative-dspark-block-size 0", {}, {"dspark-block-size"}),
        (f"{DSPARK} --speculative-num-draft-tokens 6", {}, set()),
        (f"{DSPARK} --speculative-num-draft-tokens 5", {}, {"dspark-draft-tokens"}),
        (f"{DSPARK} --speculative-dspark-block-size 4 --speculative-num-draft-tokens 5", {}, set()),
        ("--speculative-draft-sink-size 4", {}, {"speculation-draft-sink"}),
        ("--speculative-draft-sink-size 4 --speculative-draft-window-size 8", {}, set()),
    ],
)
def test_refusals(line: str, env: dict[str, str], rules: set[str]) -> None:
    assert errors(line, env=env) == rules


def test_a_checkpoint_without_draft_needs_one() -> None:
    config = {"text_config": {"num_hidden_layers": 40, "max_position_embeddings": 1048576}}
    assert errors(DSPARK, config=config) == {"dspark-draft-missing"}
    assert errors("", config=config) == set()


@pytest.mark.parametrize(("line", "tokens"), [(DSPARK, 6), (f"{DSPARK} --speculative-dspark-block-size 7", 8)])
def test_verified_tokens_are_the_block_and_one(line: str, tokens: int) -> None:
    assert resolved("speculative_num_draft_tokens", line) == tokens

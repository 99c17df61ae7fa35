"""The two commits before the release judge by their own rules, line by line as their source states them.

Each line is refused by the versions named and accepted, as the same line, by all others that are asked.
"""

from __future__ import annotations

import pytest

from epd_operator.engines.validation import validate_command_line

SEPTEMBER = "dsv41-2026-09"
OCTOBER = "dsv41-37ae292e"
RELEASE = "0.5.23"
BOTH = (SEPTEMBER, OCTOBER)
ALL = (*BOTH, RELEASE)

ON = "--enable-decoder-swa-bounded-replay"
ENCODER = "--enable-encoder-swa-bounded-replay"
PREFILL = "--disaggregation-mode prefill"
DECODE = "--disaggregation-mode decode"
GRAPH = "--cuda-graph-backend-prefill"
CP = "--enable-prefill-cp --cp-strategy interleave"
DSPARK = "--speculative-algorithm DSPARK"
TRTLLM = "--dsv4-attn-backend trtllm"

LINES = [
    # decoder replay
    (f"{ON}", (), "cuda-sm90"),
    (f"{ON} {GRAPH} disabled", (), "cuda-sm90"),
    (f"{ON} {GRAPH} breakable", (OCTOBER,), "cuda-sm90"),
    (f"{ON} {GRAPH} full", ALL, "cuda-sm90"),
    (f"{GRAPH} full", (), "cuda-sm90"),
    (f"{ON} --attn-dp-size 4", BOTH, "cuda-sm90"),
    (f"{ON} --dp-size 4 --enable-dp-attention", BOTH, "cuda-sm90"),
    (f"{ON} --attn-dp-size 2", ALL, "cuda-sm90"),
    ("--attn-dp-size 4", (), "cuda-sm90"),
    (f"{ON} {PREFILL}", (), "cuda-sm90"),
    # encoder replay
    (f"{ENCODER}", (), "cuda-sm90"),
    (f"{ENCODER} {PREFILL}", BOTH, "cuda-sm90"),
    (f"{ENCODER} {DECODE}", ALL, "cuda-sm90"),
    (f"{ENCODER} {GRAPH} breakable", BOTH, "cuda-sm90"),
    (f"{ENCODER} {GRAPH} full", ALL, "cuda-sm90"),
    (f"{ENCODER} --attn-dp-size 4", BOTH, "cuda-sm90"),
    (f"{ENCODER} --attn-cp-size 4", ALL, "cuda-sm90"),
    (f"{ENCODER} --enable-unified-memory", ALL, "cuda-sm90"),
    (f"{ENCODER} --enable-mixed-chunk", ALL, "cuda-sm90"),
    (f"{ENCODER} --enable-session-radix-cache", ALL, "cuda-sm90"),
    (f"{ENCODER} --max-running-requests 0", ALL, "cuda-sm90"),
    (f"{ENCODER} --chunked-prefill-size 256", (RELEASE,), "cuda-sm90"),
    (f"{ENCODER} --chunked-prefill-size -1", ALL, "cuda-sm90"),
    # the model as a whole
    ("--speculative-algorithm EAGLE --speculative-eagle-topk 1", ALL, "cuda-sm90"),
    ("--enable-hisparse", ALL, "cuda-sm90"),
    ("--enable-two-batch-overlap", ALL, "cuda-sm90"),
    ("--pp-size 2", ALL, "cuda-sm90"),
    # TRT-LLM attention
    (f"{TRTLLM}", (), "cuda-sm100"),
    (f"{TRTLLM}", ALL, "cuda-sm90"),
    (f"{TRTLLM} {GRAPH} breakable", BOTH, "cuda-sm100"),
    (f"{TRTLLM} {GRAPH} full", ALL, "cuda-sm100"),
    (f"{TRTLLM} --kv-cache-dtype bfloat16", ALL, "cuda-sm100"),
    (f"{TRTLLM} {PREFILL}", ALL, "cuda-sm100"),
    (f"{TRTLLM} --chunked-prefill-size -1", ALL, "cuda-sm100"),
    (f"{TRTLLM} --attn-cp-size 4", ALL, "cuda-sm100"),
    (f"{TRTLLM} --dcp-size 2", ALL, "cuda-sm100"),
    (f"{TRTLLM} {ON}", BOTH, "cuda-sm100"),
    (f"{TRTLLM} {ENCODER}", ALL, "cuda-sm100"),
    # DSpark with prefill and decode apart
    (f"{DSPARK} {PREFILL}", (), "cuda-sm90"),
    (f"{DSPARK} {PREFILL} --disaggregation-transfer-backend nixl", BOTH, "cuda-sm90"),
    (f"{DSPARK} {PREFILL} --disaggregation-transfer-backend mori", ALL, "cuda-sm90"),
    (f"{DSPARK} {DECODE} --dcp-size 2", ALL, "cuda-sm90"),
    (f"{DSPARK} {PREFILL} {CP}", (), "cuda-sm90"),
    (f"{DSPARK} {DECODE} --disaggregation-decode-enable-radix-cache", BOTH, "cuda-sm90"),
    # prefill context parallelism
    (f"{CP}", (), "cuda-sm90"),
    (f"{CP}", ALL, "hip-gfx950"),
    ("--enable-prefill-cp", ALL, "cuda-sm90"),
    ("--enable-prefill-cp --cp-strategy zigzag", ALL, "cuda-sm90"),
    (f"{CP} --attn-dp-size 4", ALL, "cuda-sm90"),
    (f"{CP} --moe-a2a-backend nixl", ALL, "cuda-sm90"),
]


@pytest.mark.parametrize(("flags", "refusing", "platform"), LINES)
@pytest.mark.parametrize("version", ALL)
def test_line_by_version(flags: str, refusing: tuple[str, ...], platform: str, version: str) -> None:
    judged = validate_command_line(version, platform, ["--tp-size", "4", *flags.split()], {})
    assert judged.accepted == (version not in refusing), "\n".join(map(str, judged.errors))


@pytest.mark.parametrize("version", BOTH)
def test_verify_mode_is_an_environment_variable(version: str) -> None:
    line = f"--tp-size 4 {DSPARK} {PREFILL}".split()
    assert validate_command_line(version, "cuda-sm90", line, {}).accepted
    assert not validate_command_line(version, "cuda-sm90", line, {"SGLANG_RAGGED_VERIFY_MODE": "compact"}).accepted


@pytest.mark.parametrize("version", BOTH)
def test_decoder_replay_is_off_unless_asked_for(version: str) -> None:
    name = "enable_decoder_swa_bounded_replay"
    resolved = validate_command_line(version, "cuda-sm90", ["--tp-size", "4"], {}).resolved
    assert not resolved["aggregated"][name]
    asked = validate_command_line(version, "cuda-sm90", ["--tp-size", "4", ON], {}).resolved
    assert asked["aggregated"][name] is True
    assert validate_command_line(RELEASE, "cuda-sm90", ["--tp-size", "4"], {}).resolved["aggregated"][name] is True


def test_what_no_source_states_is_marked_inferred() -> None:
    line = ["--tp-size", "4", "--enable-two-batch-overlap"]
    (stated,) = (f for f in validate_command_line(SEPTEMBER, "cuda-sm90", line, {}).errors if "overlap" in f.rule)
    (inferred,) = (f for f in validate_command_line(OCTOBER, "cuda-sm90", line, {}).errors if "overlap" in f.rule)
    assert not stated.inferred
    assert inferred.inferred
    assert "inferred" in str(inferred)

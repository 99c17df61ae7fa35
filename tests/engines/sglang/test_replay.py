"""SWA bounded replay: on where nobody objects, refused only when it is asked for; each refusal beside its control."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, judged, resolved

SM90, HIP = "cuda-sm90", "hip-gfx950"
ON = "--enable-decoder-swa-bounded-replay"
ENCODER = "--enable-encoder-swa-bounded-replay"
GRAPH = "--cuda-graph-backend-prefill"


@pytest.mark.parametrize(
    ("line", "platform", "on"),
    [
        ("", SM90, True),
        ("", HIP, True),
        ("--disaggregation-mode prefill", SM90, True),
        ("--disaggregation-mode prefill", HIP, False),
        ("--no-enable-decoder-swa-bounded-replay", SM90, False),
        (f"{ON} --disaggregation-mode decode", HIP, True),
        (f"{GRAPH} breakable", SM90, True),
        (f"{GRAPH} full", SM90, False),
        ("--attn-dp-size 4", SM90, True),
        ("--attn-dp-size 2", SM90, False),
        ("--attn-dp-size 4 --moe-a2a-backend megamoe", HIP, False),
        ("--attn-cp-size 4", SM90, False),
        ("--dcp-size 2", SM90, False),
        ("--return-hidden-states-mode last", SM90, False),
    ],
)
def test_decoder_replay_when_nobody_asks(line: str, platform: str, on: bool) -> None:
    assert resolved("enable_decoder_swa_bounded_replay", line, platform) is on


@pytest.mark.parametrize(
    ("line", "platform", "rules"),
    [
        (f"{ON} {GRAPH} breakable", SM90, set()),
        (f"{ON} {GRAPH} full", SM90, {"decoder-replay-prefill-graph"}),
        (f"{ON} --attn-dp-size 4", SM90, set()),
        (f"{ON} --attn-dp-size 2", SM90, {"decoder-replay-attention-dp"}),
        (f"{ON} --dp-size 2 --enable-dp-attention", SM90, {"decoder-replay-attention-dp"}),
        (f"{ON} --dp-size 2", SM90, set()),
        (f"{ON} --attn-dp-size 4 --moe-a2a-backend mori", HIP, {"decoder-replay-attention-dp"}),
        (f"{ENCODER}", SM90, set()),
        (f"{ENCODER} --disaggregation-mode prefill", SM90, set()),
        (f"{ENCODER} --disaggregation-mode prefill", HIP, {"encoder-replay-role"}),
        (f"{ENCODER} --disaggregation-mode decode", SM90, {"encoder-replay-role"}),
        (f"{ENCODER} {GRAPH} breakable", SM90, set()),
        (f"{ENCODER} {GRAPH} breakable", HIP, {"encoder-replay-prefill-graph"}),
        (f"{ENCODER} --attn-dp-size 4 --chunked-prefill-size 2048", SM90, set()),
        (f"{ENCODER} --attn-dp-size 4 --chunked-prefill-size 1024", SM90, {"encoder-replay-chunk"}),
        (f"{ENCODER} --attn-dp-size 4", HIP, {"encoder-replay-attention-dp"}),
        (f"{ENCODER} --chunked-prefill-size 512", SM90, set()),
        (f"{ENCODER} --chunked-prefill-size 256", SM90, {"encoder-replay-chunk"}),
        (f"{ENCODER} --max-running-requests 0", SM90, {"encoder-replay-running-requests"}),
        (f"{ENCODER} --enable-mixed-chunk", SM90, {"encoder-replay-mixed-chunk"}),
        (f"{ENCODER} --dsv4-attn-backend trtllm", "cuda-sm100", {"encoder-replay-trtllm"}),
    ],
)
def test_refusals(line: str, platform: str, rules: set[str]) -> None:
    assert errors(line, platform) == rules


def test_other_models_have_no_replay() -> None:
    config = {"model_type": "deepseek_v4"}
    assert errors(f"{ON} {GRAPH} full", config=config) == set()
    assert errors(ENCODER, config=config) == {"encoder-replay-model"}


def test_the_message_names_the_widths_and_the_way_out() -> None:
    (finding,) = judged(f"{ON} --dp-size 2 --enable-dp-attention").errors
    assert "as wide as TP (2 of 4 here)" in finding.says
    assert "--dp-size = 2" in str(finding)
    assert "set attn-dp-size to 4" in finding.fix

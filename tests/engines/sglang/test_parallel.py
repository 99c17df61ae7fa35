"""How many ways a model is split: each limit beside the last line that keeps it."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, judged, resolved

WIDTHS = ("attn_dp_size", "dp_size", "attn_cp_size", "attn_tp_size")


@pytest.mark.parametrize(
    ("line", "widths"),
    [
        ("", (1, 1, 1, 4)),
        ("--attn-dp-size 4", (4, 1, 1, 1)),
        ("--dp-size 4 --enable-dp-attention", (4, 1, 1, 1)),
        ("--dp-size 4 --attn-dp-size 2 --enable-dp-attention", (2, 4, 1, 2)),
        ("--dp-size 2", (1, 2, 1, 4)),
        ("--attn-cp-size 2", (1, 1, 2, 2)),
        ("--attn-dp-size 2 --attn-cp-size 2", (2, 1, 2, 1)),
        ("--enable-prefill-cp --cp-strategy interleave", (1, 1, 4, 1)),
        ("--enable-prefill-cp --cp-strategy interleave --attn-cp-size 2", (1, 1, 4, 1)),
        ("--dwdp-size 4", (4, 1, 1, 1)),
        ("--dwdp-size 1", (1, 1, 1, 4)),
    ],
)
def test_widths(line: str, widths: tuple[int, ...]) -> None:
    assert tuple(resolved(name, line) for name in WIDTHS) == widths


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("--attn-dp-size 2", set()),
        ("--attn-dp-size 3 --chunked-prefill-size -1", {"attention-dp-divides-tp"}),
        ("--attn-dp-size 0", {"attention-dp-positive"}),
        ("--attn-dp-size 2 --dp-size 2", {"attention-dp-or-replicas"}),
        ("--attn-cp-size 4", set()),
        ("--attn-cp-size 3", {"attention-cp-divides-tp"}),
        ("--attn-cp-size 4 --attn-dp-size 2", {"attention-cp-divides-tp"}),
        ("--moe-dp-size 2", {"moe-dp-is-attention-cp"}),
        ("--moe-dp-size 2 --attn-cp-size 2", set()),
        ("--moe-dp-size 2 --attn-cp-size 2 --ep-size 2", set()),
        ("--moe-dp-size 2 --attn-cp-size 2 --ep-size 4", {"moe-dp-divides-tp"}),
        ("--attn-cp-size 2 --enable-aiter-allreduce-fusion", {"attention-cp-aiter-fusion"}),
        ("--enable-aiter-allreduce-fusion", set()),
        ("--nnodes 2", set()),
        ("--nnodes 3", {"nodes-divide-ranks"}),
        ("--nnodes 2 --dp-size 2", {"replicas-on-one-node"}),
        ("--nnodes 2 --attn-dp-size 4", set()),
        ("--moe-dense-tp-size 4", set()),
        ("--moe-dense-tp-size 2", {"dense-tp-size"}),
        ("--enable-dp-lm-head", set()),
        ("--enable-dp-lm-head --dp-size 2", {"dp-lm-head-needs-attention-dp"}),
        ("--enable-dp-lm-head --attn-dp-size 2", set()),
        ("--enable-tp-lm-head-all-to-all", {"tp-lm-head-shape"}),
        ("--enable-tp-lm-head-all-to-all --attn-dp-size 2", {"tp-lm-head-shape"}),
        ("--enable-tp-lm-head-all-to-all --attn-dp-size 4", set()),
        ("--enable-tp-lm-head-all-to-all --attn-dp-size 4 --enable-dp-lm-head", {"tp-lm-head-shape"}),
        ("--dcp-size 2", set()),
        ("--dcp-size 0", {"decode-cp-positive"}),
        ("--dcp-size 1 --dcp-comm-backend a2a", {"decode-cp-backend-without-cp"}),
        ("--dcp-size 2 --dcp-comm-backend a2a", set()),
        ("--dcp-size 2 --dcp-replicate-q-proj", set()),
        ("--dcp-size 2 --dcp-replicate-q-proj --dcp-comm-backend ag_rs", {"decode-cp-replicated-query"}),
        ("--dcp-replicate-q-proj", {"decode-cp-replicated-query"}),
        ("--dwdp-size 4 --disaggregation-mode prefill", set()),
        ("--dwdp-size 4 --disaggregation-mode decode", {"dwdp-on-decode"}),
        ("--dwdp-size 2", {"dwdp-fills-tp"}),
        ("--dwdp-size 4 --speculative-algorithm DSPARK", {"dwdp-alone"}),
        ("--dwdp-size 4 --enable-eplb", {"dwdp-alone"}),
    ],
)
def test_splits(line: str, rules: set[str]) -> None:
    assert errors(line) == rules


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("", {"prefill-cp-strategy"}),
        ("--cp-strategy zigzag", {"prefill-cp-strategy"}),
        ("--cp-strategy interleave", set()),
        ("--cp-strategy interleave --tp-size 8", set()),
        ("--cp-strategy interleave --tp-size 16", {"prefill-cp-one-machine"}),
        ("--cp-strategy interleave --attn-dp-size 4", {"prefill-cp-or-attention-dp"}),
        ("--cp-strategy interleave --dp-size 2", {"prefill-cp-or-attention-dp"}),
        ("--cp-strategy interleave --dcp-size 2", {"decode-cp-or-prefill-cp"}),
        ("--cp-strategy interleave --moe-a2a-backend mori --chunked-prefill-size 4096", set()),
        ("--cp-strategy interleave --moe-a2a-backend nixl", {"prefill-cp-exchange"}),
    ],
)
def test_prefill_context_parallelism(line: str, rules: set[str]) -> None:
    assert errors(f"--enable-prefill-cp {line}") == rules
    assert "prefill-cp-on-rocm" in errors(f"--enable-prefill-cp {line}", "hip-gfx950")


def test_both_data_widths_under_prefill_context_parallelism() -> None:
    refused = errors("--enable-prefill-cp --cp-strategy interleave --attn-dp-size 2 --dp-size 2")
    assert refused == {"prefill-cp-or-attention-dp", "prefill-cp-two-data-widths"}


@pytest.mark.parametrize(
    ("line", "role", "expected"),
    [
        ("--attn-dp-size 4", "decode", True),
        ("--attn-dp-size 4", "prefill", False),
        ("--attn-dp-size 2", "decode", False),
        ("--attn-dp-size 4 --enable-dp-lm-head", "decode", False),
        ("--attn-dp-size 4 --no-enable-tp-lm-head-all-to-all", "decode", False),
    ],
)
def test_tensor_parallel_head(line: str, role: str, expected: bool) -> None:
    assert resolved("enable_tp_lm_head_all_to_all", f"{line} --disaggregation-mode {role}") is expected


@pytest.mark.parametrize(
    ("line", "platform", "rules"),
    [
        ("--attn-cp-size 0", "cuda-sm100", {"attention-width-zero"}),
        ("--attn-cp-size 0 --dsv4-attn-backend flashmla", "cuda-sm100", set()),
        ("--attn-cp-size 0 --disaggregation-mode prefill", "cuda-sm100", set()),
        ("--attn-cp-size 0", "cuda-sm90", set()),
        ("--pp-size 0", "cuda-sm100", set()),
        ("--dcp-size 2 --pp-size 0", "cuda-sm100", {"decode-cp-without-pipeline"}),
        ("--dcp-size 2 --pp-size 0", "cuda-sm90", set()),
        ("--dcp-size 2 --dcp-comm-backend fi_a2a", "cuda-sm90", set()),
        ("--dcp-size 2 --dcp-comm-backend fi_a2a", "hip-gfx950", {"decode-cp-flashinfer-on-cuda"}),
    ],
)
def test_widths_of_zero_pass_where_nothing_divides_by_them(line: str, platform: str, rules: set[str]) -> None:
    assert errors(line, platform) == rules


@pytest.mark.parametrize(("size", "warned"), [("2", True), ("1", True), ("4", False)])
def test_prefill_context_parallelism_overrules_the_width(size: str, warned: bool) -> None:
    judgement = judged(f"--enable-prefill-cp --cp-strategy interleave --attn-cp-size {size}").findings
    assert ("attention-cp-override" in {finding.rule for finding in judgement}) is warned


@pytest.mark.parametrize("line", ["--pp-size 0", "--attn-cp-size 0", "--dp-size 0", "--ep-size 0"])
def test_a_width_of_zero_is_warned_of(line: str) -> None:
    (finding,) = (item for item in judged(line).findings if item.rule == "widths-positive")
    assert (finding.severity, finding.overridable) == ("warning", True)


def test_a_finding_shows_what_the_retired_spelling_became() -> None:
    (finding,) = judged("--dp-size 3 --enable-dp-attention --chunked-prefill-size -1").errors
    assert finding.rule == "attention-dp-divides-tp"
    assert [(side.field, side.written) for side in finding.sides[:2]] == [("--tp-size", 4), ("--dp-size", 3)]
    assert "4 tensor-parallel ranks into 3" in finding.says

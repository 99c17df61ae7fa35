"""Room for one step: the last size that fits beside the first that does not."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, judged

MEGA = "SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK"
WIDE = "--attn-dp-size 4"


@pytest.mark.parametrize(
    ("line", "room", "rules"),
    [
        ("", "8192", set()),
        ("", "8191", {"megamoe-prefill-room"}),
        ("", "many", set()),
        ("--chunked-prefill-size -1", "8192", {"megamoe-chunking"}),
        # The chunk is divided by attention data parallelism twice.
        (WIDE, "512", set()),
        (WIDE, "511", {"megamoe-prefill-room"}),
        ("--enable-prefill-cp --cp-strategy interleave", "2048", set()),
        ("--enable-prefill-cp --cp-strategy interleave", "2047", {"megamoe-prefill-room"}),
        ("--disaggregation-mode decode", "256", set()),
        ("--disaggregation-mode decode", "255", {"megamoe-decode-room"}),
        ("--disaggregation-mode decode --chunked-prefill-size -1", "256", set()),
        ("--disaggregation-mode decode --max-running-requests 61 --cuda-graph-max-bs-decode 128", "64", set()),
        (
            "--disaggregation-mode decode --max-running-requests 61 --cuda-graph-max-bs-decode 128",
            "63",
            {"megamoe-decode-room"},
        ),
        ("--disaggregation-mode decode --cuda-graph-max-bs-decode 32", "32", set()),
        ("--disaggregation-mode decode --cuda-graph-max-bs-decode 32", "31", {"megamoe-decode-room"}),
        ("--disaggregation-mode decode --speculative-algorithm DSPARK", "1536", set()),
        ("--disaggregation-mode decode --speculative-algorithm DSPARK", "1535", {"megamoe-decode-room"}),
        ("--disaggregation-mode prefill", "8192", set()),
        ("", "100", {"megamoe-prefill-room", "megamoe-decode-room"}),
        ("--disaggregation-mode prefill --chunked-prefill-size 256", "256", set()),
    ],
)
def test_megamoe(line: str, room: str, rules: set[str]) -> None:
    assert errors(f"--moe-a2a-backend megamoe {line}", env={MEGA: room}) == rules
    on_rocm = errors(f"--moe-a2a-backend megamoe {line}", "hip-gfx950", {MEGA: room})
    assert not {rule for rule in on_rocm if rule.startswith("megamoe")}


@pytest.mark.parametrize(
    ("line", "decode", "rules"),
    [
        ("", "256", set()),
        ("", "255", {"megamoe-rocm-decode-room"}),
        ("", "8192", set()),
        ("", "0", set()),
        (f"{WIDE}", "64", set()),
        (f"{WIDE}", "63", {"megamoe-rocm-decode-room"}),
        ("--attn-cp-size 2", "512", {"megamoe-rocm-decode-room"}),
        ("--disaggregation-mode prefill", "1", set()),
    ],
)
def test_megamoe_on_rocm(line: str, decode: str, rules: set[str]) -> None:
    env = {"SGLANG_AMD_USE_FLYDSL_MEGA_MOE": "true", "SGLANG_AMD_FLYDSL_MEGA_MOE_DECODE_MTPR": decode}
    assert errors(f"--moe-a2a-backend megamoe {line}", "hip-gfx950", env) == rules
    off = {**env, "SGLANG_AMD_USE_FLYDSL_MEGA_MOE": "0"}
    assert errors(f"--moe-a2a-backend megamoe {line}", "hip-gfx950", off) == set()


@pytest.mark.parametrize(
    ("line", "room", "rules"),
    [
        ("--chunked-prefill-size 4096", None, set()),
        ("--chunked-prefill-size 4352", None, {"mori-room"}),
        ("--chunked-prefill-size 4352", "4352", set()),
        ("--chunked-prefill-size 4352 --disaggregation-mode decode", None, set()),
        ("--chunked-prefill-size -1", None, set()),
        (f"{WIDE} --chunked-prefill-size 16384", None, set()),
    ],
)
def test_mori(line: str, room: str | None, rules: set[str]) -> None:
    env = {} if room is None else {"SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK": room}
    assert errors(f"--moe-a2a-backend mori {line}", env=env) == rules


@pytest.mark.parametrize(
    ("line", "room", "rules"),
    [
        ("--chunked-prefill-size 2048", "512", set()),
        ("--chunked-prefill-size 2048", "511", {"pplx-room"}),
        ("--chunked-prefill-size 2048 --cuda-graph-max-bs-decode 600", "600", set()),
        ("--chunked-prefill-size 2048 --cuda-graph-max-bs-decode 600", "599", {"pplx-room"}),
        ("--disaggregation-mode decode", None, set()),
        ("", None, {"pplx-room"}),
    ],
)
def test_pplx(line: str, room: str | None, rules: set[str]) -> None:
    env = {} if room is None else {"SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK": room}
    assert errors(f"--moe-a2a-backend pplx {WIDE} {line}", env=env) == rules


@pytest.mark.parametrize(
    ("line", "room", "rules"),
    [
        ("", None, set()),
        ("", "2048", set()),
        ("", "2047", {"flashinfer-room"}),
        ("--chunked-prefill-size -1", None, {"flashinfer-chunking"}),
        ("--chunked-prefill-size -1 --disaggregation-mode decode", None, set()),
        ("--cuda-graph-backend-prefill breakable --cuda-graph-max-bs-prefill 4097", None, {"flashinfer-room"}),
        ("--cuda-graph-backend-prefill breakable --cuda-graph-max-bs-prefill 4096", None, set()),
        ("--cuda-graph-max-bs-prefill 4097", None, set()),
        ("--disaggregation-mode decode", "64", set()),
        ("--disaggregation-mode decode", "63", {"flashinfer-room"}),
        ("--disaggregation-mode decode --disable-cuda-graph", "1", set()),
    ],
)
def test_flashinfer(line: str, room: str | None, rules: set[str]) -> None:
    env = {} if room is None else {"SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK": room}
    assert errors(f"--moe-a2a-backend flashinfer --moe-runner-backend deep_gemm {WIDE} {line}", env=env) == rules


@pytest.mark.parametrize(
    ("line", "room", "rules"),
    [
        # Pure tensor parallelism scatters a chunk over all four ranks.
        ("", "2048", set()),
        ("", "2047", {"deepep-v2-room"}),
        ("--chunked-prefill-size -1 --max-prefill-tokens 1000", "256", set()),
        ("--chunked-prefill-size -1 --max-prefill-tokens 1200", "299", {"deepep-v2-room"}),
        (WIDE, "2048", set()),
        ("--disaggregation-mode decode", "256", set()),
        ("--disaggregation-mode decode", None, {"deepep-v2-room"}),
        ("--disaggregation-mode decode --max-running-requests 128", None, set()),
        (f"--disaggregation-mode decode {WIDE} --max-running-requests 515", None, set()),
        (f"--disaggregation-mode decode {WIDE} --max-running-requests 516", None, {"deepep-v2-room"}),
    ],
)
def test_deepep_v2(line: str, room: str | None, rules: set[str]) -> None:
    env = {} if room is None else {"SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK": room}
    assert errors(f"--moe-a2a-backend deepep_v2 {line}", env=env) == rules


def test_a_finding_says_how_much_room_is_needed() -> None:
    (finding,) = judged("--moe-a2a-backend mori").errors
    assert "8192 tokens a rank, and MoRI reserves 4096" in finding.says
    assert "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK to 8192" in finding.fix
    assert [side.field for side in finding.sides][-1] == "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK"

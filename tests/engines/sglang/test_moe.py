"""Mixture of experts: which back ends run together, and which settings overrule which."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, judged, resolved

SETTINGS = ("moe_a2a_backend", "moe_runner_backend", "ep_size")


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("", ("none", "flashinfer_mxfp4", 1)),
        ("--ep-size 2", ("none", "flashinfer_mxfp4", 2)),
        ("--moe-a2a-backend deepep", ("deepep", "auto", 4)),
        ("--moe-a2a-backend deepep --ep-size 2", ("deepep", "auto", 4)),
        ("--moe-runner-backend megamoe", ("megamoe", "auto", 4)),
        ("--moe-runner-backend megamoe --moe-a2a-backend deepep", ("megamoe", "auto", 4)),
        ("--moe-a2a-backend ascend_tp --ep-size 2", ("none", "auto", 2)),
        ("--moe-a2a-backend pplx", ("pplx", "deep_gemm", 4)),
        ("--moe-a2a-backend deepep_v2", ("deepep_v2", "deep_gemm", 4)),
        ("--moe-a2a-backend flashinfer_megamoe", ("flashinfer_megamoe", "flashinfer_megamoe", 4)),
        ("--enable-waterfill", ("deepep", "flashinfer_mxfp4", 4)),
        ("--enable-waterfill --moe-a2a-backend megamoe", ("megamoe", "auto", 4)),
        ("--dwdp-size 4 --moe-a2a-backend deepep", ("none", "flashinfer_mxfp4", 4)),
        ("--moe-a2a-backend flashinfer --moe-runner-backend flashinfer_trtllm", ("flashinfer", "flashinfer_trtllm", 4)),
        (
            "--moe-a2a-backend flashinfer --moe-runner-backend flashinfer_trtllm --flashinfer-a2a-dispatch-type bf16",
            ("flashinfer", "flashinfer_trtllm_routed", 4),
        ),
    ],
)
def test_settings(line: str, settings: tuple[object, ...]) -> None:
    assert tuple(resolved(name, line) for name in SETTINGS) == settings


def test_runner_follows_platform_and_variables() -> None:
    assert resolved("moe_runner_backend", "", "hip-gfx950") == "auto"
    for name, value in (("SGLANG_DSV4_FP4_DEQUANT", "1"), ("SGLANG_DSV4_FP4_EXPERTS", "no")):
        assert resolved("moe_runner_backend", "", env={name: value}) == "auto"
    assert resolved("moe_runner_backend", "", env={"SGLANG_DSV4_FP4_DEQUANT": "maybe"}) == "flashinfer_mxfp4"


WIDE = "--attn-dp-size 4"
NARROW = {"SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16": "1"}
CUTEDSL = "--moe-runner-backend flashinfer_cutedsl --quantization modelopt_fp4"


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("--moe-runner-backend flashinfer_cutlass", set()),
        ("--moe-runner-backend flashinfer_cutlass --ep-size 4", set()),
        ("--moe-runner-backend flashinfer_cutlass --ep-size 2", {"moe-runner-expert-split"}),
        ("--moe-runner-backend flashinfer_cutlass --quantization fp8", {"moe-runner-quantization"}),
        ("--moe-runner-backend flashinfer_cutlass --quantization unquant", set()),
        ("--moe-runner-backend flashinfer_cutedsl", {"moe-runner-quantization"}),
        (CUTEDSL, set()),
        (f"{CUTEDSL} --moe-a2a-backend nixl", {"moe-cutedsl-exchange"}),
        (
            f"{CUTEDSL} --moe-a2a-backend deepep --deepep-mode normal",
            {"moe-cutedsl-normal-mode"},
        ),
        ("--moe-runner-backend cutlass --quantization fp8 --ep-size 2", {"moe-runner-expert-split"}),
        ("--moe-runner-backend cutlass --ep-size 2", set()),
        ("--moe-runner-backend flashinfer_trtllm --quantization fp8", set()),
        ("--shared-experts-tp-size 1", {"moe-shared-experts-tp"}),
        ("--moe-a2a-backend megamoe --enable-single-batch-overlap", {"megamoe-overlap"}),
        ("--moe-a2a-backend deepep --enable-single-batch-overlap", set()),
        ("--flashinfer-a2a-dispatch-type bf16", {"flashinfer-dispatch-elsewhere"}),
        ("--flashinfer-a2a-dispatch-type auto", set()),
        (f"{WIDE} --moe-a2a-backend flashinfer --moe-runner-backend deep_gemm", set()),
        (f"{WIDE} --moe-a2a-backend flashinfer", {"flashinfer-exchange-runner"}),
        (
            "--attn-dp-size 2 --moe-a2a-backend flashinfer --moe-runner-backend deep_gemm",
            {"flashinfer-exchange-shape"},
        ),
        (
            f"{WIDE} --moe-a2a-backend flashinfer --moe-runner-backend deep_gemm --flashinfer-a2a-dispatch-type nvfp4",
            {"flashinfer-exchange-format"},
        ),
        ("--moe-a2a-backend pplx --chunked-prefill-size -1", {"pplx-shape"}),
        (f"{WIDE} --moe-a2a-backend pplx --chunked-prefill-size -1", set()),
        (f"{WIDE} --moe-a2a-backend pplx --chunked-prefill-size -1 --deepep-mode normal", {"pplx-mode"}),
        (f"{WIDE} --moe-a2a-backend pplx --chunked-prefill-size -1 --moe-runner-backend triton", {"pplx-runner"}),
    ],
)
def test_back_ends(line: str, rules: set[str]) -> None:
    assert errors(line) == rules


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("", set()),
        ("--moe-runner-backend triton", {"deepep-v2-runner"}),
        ("--enable-single-batch-overlap", {"deepep-v2-alone"}),
        ("--enforce-shared-experts-fusion", {"deepep-v2-alone"}),
        ("--nnodes 2", {"deepep-v2-alone"}),
        ("--nnodes 2 --deepep-v2-mode hybrid", set()),
        ("--speculative-algorithm DSPARK", {"deepep-v2-draft"}),
        ("--speculative-algorithm DSPARK --speculative-moe-a2a-backend none", set()),
        ("--speculative-moe-a2a-backend deepep_v2", {"deepep-v2-draft"}),
    ],
)
def test_deepep_v2(line: str, rules: set[str]) -> None:
    room = {"SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "65536"}
    assert errors(f"--moe-a2a-backend deepep_v2 {line}", env=room) == rules


@pytest.mark.parametrize(
    ("line", "platform", "env", "rules"),
    [
        ("", "cuda-sm100", {}, set()),
        ("", "cuda-sm90", {}, {"flashinfer-megamoe-shape"}),
        ("--attn-dp-size 2", "cuda-sm100", {}, {"flashinfer-megamoe-shape"}),
        ("--moe-runner-backend triton", "cuda-sm100", {}, {"flashinfer-megamoe-shape"}),
        ("", "cuda-sm100", {"SGLANG_DSV4_FP4_EXPERTS": "0"}, {"flashinfer-megamoe-experts"}),
        ("", "cuda-sm100", {"SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE": "MXFP8"}, set()),
        ("", "cuda-sm100", {"SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE": "fp8"}, {"flashinfer-megamoe-combine"}),
        (
            "",
            "cuda-sm100",
            {"SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE": "mxfp8", "SGLANG_FLASHINFER_MEGAMOE_IN_KERNEL_FC2_REDUCE": "1"},
            {"flashinfer-megamoe-combine"},
        ),
        (
            "",
            "cuda-sm100",
            {"SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE": "mxfp8", **NARROW},
            {"flashinfer-megamoe-combine"},
        ),
        ("--dtype half", "cuda-sm100", {}, set()),
        ("--dtype half", "cuda-sm100", NARROW, {"flashinfer-megamoe-shape"}),
        ("--quantization nvfp4_online", "cuda-sm100", {}, {"flashinfer-megamoe-shape"}),
        ("--quantization nvfp4_online", "cuda-sm100", NARROW, set()),
    ],
)
def test_flashinfer_megamoe(line: str, platform: str, env: dict[str, str], rules: set[str]) -> None:
    assert errors(f"{WIDE} --moe-a2a-backend flashinfer_megamoe {line}", platform, env) == rules


@pytest.mark.parametrize(
    ("line", "platform", "refused"),
    [
        ("--moe-a2a-backend deepep", "cuda-sm100", False),
        ("", "cuda-sm100", True),
        ("--moe-runner-backend flashinfer_trtllm", "cuda-sm100", False),
        ("--moe-runner-backend flashinfer_trtllm", "cuda-sm90", True),
    ],
)
def test_online_quantization(line: str, platform: str, refused: bool) -> None:
    assert ("moe-online-quantization" in errors(f"--quantization nvfp4_online {line}", platform)) is refused


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("--enable-waterfill", {"exchange-override"}),
        ("--enable-waterfill --moe-a2a-backend megamoe", set()),
        ("--moe-runner-backend megamoe", set()),
        ("--moe-runner-backend megamoe --moe-a2a-backend deepep", {"exchange-override"}),
        ("--dwdp-size 4 --moe-a2a-backend deepep", {"exchange-override"}),
        ("--moe-a2a-backend deepep --ep-size 2", {"expert-size-override"}),
        ("--moe-a2a-backend deepep --ep-size 4", set()),
        ("--ep-size 2", set()),
        ("--dwdp-size 4 --ep-size 2", {"expert-size-override"}),
    ],
)
def test_what_the_engine_overrules_is_warned_of(line: str, rules: set[str]) -> None:
    assert {item.rule for item in judged(line).findings if "override" in item.rule} == rules


@pytest.mark.parametrize(
    ("line", "env", "rules"),
    [
        ("", {}, set()),
        ("", NARROW, set()),
        ("", {**NARROW, "SGLANG_MOE_NVFP4_DISPATCH": "1"}, {"flashinfer-exchange-w4a16"}),
        ("", {"SGLANG_MOE_NVFP4_DISPATCH": "1"}, set()),
        ("--flashinfer-a2a-dispatch-type auto", NARROW, {"flashinfer-exchange-w4a16"}),
        ("--flashinfer-a2a-dispatch-type bf16", NARROW, set()),
        ("--flashinfer-a2a-dispatch-type nvfp4", {}, set()),
        ("--flashinfer-a2a-dispatch-type mxfp8", {}, {"flashinfer-exchange-format"}),
        ("--flashinfer-a2a-dispatch-type bf16", {"SGLANG_MOE_NVFP4_DISPATCH": "0"}, {"flashinfer-exchange-format"}),
    ],
)
def test_flashinfer_dispatch(line: str, env: dict[str, str], rules: set[str]) -> None:
    assert errors(f"{WIDE} --moe-a2a-backend flashinfer {CUTEDSL} {line}", env=env) == rules


def test_per_token_scales() -> None:
    env = {"SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION": "1"}
    assert errors(f"{CUTEDSL} --moe-a2a-backend deepep", env=env) == {"moe-cutedsl-exchange"}
    assert errors(f"{CUTEDSL} --moe-a2a-backend deepep") == set()


@pytest.mark.parametrize("runner", ["flashinfer_trtllm", "flashinfer_trtllm_routed", "experimental_sgl_trtllm"])
def test_runner_without_kernel_for_the_format(runner: str) -> None:
    assert errors(f"--moe-runner-backend {runner} --quantization quark_mxfp4", "hip-gfx950") == {
        "moe-runner-quantization"
    }
    assert errors(f"--moe-runner-backend {runner}", "hip-gfx950") == set()

"""Attention back ends: the choice inside dsv4, the KV dtype, the page size, and the limits of single back ends."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, resolved

SM90, SM100, HIP = "cuda-sm90", "cuda-sm100", "hip-gfx950"
PREFILL = "--disaggregation-mode prefill"


@pytest.mark.parametrize(
    ("line", "platform", "env", "backend"),
    [
        ("", SM90, {}, "flashmla"),
        ("", HIP, {}, "flashmla"),
        ("", SM100, {}, "flashmla"),
        ("--tp-size 1", SM100, {}, "flashmla_mega"),
        (PREFILL, SM100, {}, "flashmla_mega"),
        (PREFILL, SM90, {}, "flashmla"),
        ("--attn-dp-size 4", SM100, {}, "flashmla_mega"),
        ("--attn-dp-size 2", SM100, {}, "flashmla"),
        ("--enable-prefill-cp --cp-strategy interleave", SM100, {}, "flashmla_mega"),
        (f"{PREFILL} --kv-cache-dtype bfloat16", SM100, {}, "flashmla"),
        (PREFILL, SM100, {"SGLANG_DSV4_KV_LAYOUT": "V41"}, "flashmla_mega"),
        (PREFILL, SM100, {"SGLANG_DSV4_KV_LAYOUT": "v4"}, "flashmla"),
        (f"{PREFILL} --dsv4-attn-backend flashmla", SM100, {}, "flashmla"),
    ],
)
def test_kernels_chosen(line: str, platform: str, env: dict[str, str], backend: str) -> None:
    assert resolved("dsv4_attn_backend", line, platform, env) == backend


@pytest.mark.parametrize(
    ("line", "platform", "size"),
    [
        ("--page-size 64", SM90, 256),
        ("--decode-attention-backend trtllm_mla", SM100, 64),
        ("--prefill-attention-backend fa4", SM100, 128),
        ("--prefill-attention-backend fa4", SM90, 256),
        ("--prefill-attention-backend flashmla", SM90, 256),
        ("--decode-attention-backend flashmla", SM90, 64),
    ],
)
def test_page_size_is_the_back_ends(line: str, platform: str, size: int) -> None:
    assert resolved("page_size", line, platform) == size


@pytest.mark.parametrize(
    ("line", "platform", "rules"),
    [
        ("--kv-cache-dtype fp8_e5m2", SM90, {"attention-kv-dtype"}),
        ("--kv-cache-dtype bfloat16", SM90, set()),
        ("--dsv4-attn-backend flashmla_mega", SM90, {"attention-mega-hardware"}),
        ("--dsv4-attn-backend flashmla_mega", SM100, set()),
        ("--dsv4-attn-backend trtllm", SM100, set()),
        ("--dsv4-attn-backend trtllm", HIP, {"attention-trtllm-hardware"}),
        ("--dsv4-attn-backend trtllm --chunked-prefill-size -1", SM100, {"attention-trtllm-chunked-prefill"}),
        (
            "--dsv4-attn-backend trtllm --kv-cache-dtype bfloat16 --dcp-size 2 --disaggregation-mode decode",
            SM100,
            {
                "attention-trtllm-kv-dtype",
                "attention-trtllm-context-parallel",
                "attention-trtllm-disaggregation",
            },
        ),
        ("--rl-on-policy-target fsdp", SM90, {"attention-deterministic"}),
        ("--prefill-attention-backend trtllm_mha", SM90, set()),
        ("--prefill-attention-backend trtllm_mha --attn-cp-size 4", SM90, {"attention-trtllm-mha"}),
        ("--prefill-attention-backend trtllm_mha", HIP, {"attention-trtllm-mha"}),
        ("--decode-attention-backend trtllm_mla", SM90, {"attention-decode-trtllm-mla"}),
        ("--decode-attention-backend cutedsl_mla", SM100, set()),
        ("--decode-attention-backend tokenspeed_mla --kv-cache-dtype fp8_e5m2", SM100, set()),
        ("--decode-attention-backend tokenspeed_mla", SM90, {"attention-cutedsl-mla"}),
        ("--prefill-attention-backend tokenspeed_mla", SM90, set()),
        ("--prefill-attention-backend cutedsl_mla", SM100, {"attention-cutedsl-mla"}),
        ("--linear-attn-backend flashinfer", SM90, set()),
        ("--linear-attn-backend flashinfer", SM100, {"linear-attention-backend"}),
        ("--linear-attn-backend flashinfer --mamba-ssm-dtype bfloat16", SM100, set()),
    ],
)
def test_limits(line: str, platform: str, rules: set[str]) -> None:
    assert errors(line, platform) == rules

"""The model as a whole: what it lacks, how it may be loaded, and flags that belong to other models."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors

SM90, HIP = "cuda-sm90", "hip-gfx950"
UNIFIED = {"SGLANG_HACK_FLASHMLA_BACKEND": "unified_kv_triton"}


@pytest.mark.parametrize(
    ("line", "platform", "env", "rules"),
    [
        ("--pp-size 2", SM90, {}, {"model-pipeline-parallel"}),
        ("--attn-dp-size 4 --enable-two-batch-overlap", SM90, {}, {"model-two-batch-overlap"}),
        ("", HIP, UNIFIED, {"model-unified-kv"}),
        ("", SM90, UNIFIED, set()),
        ("--language-model-only --disaggregation-mode prefill", SM90, {}, set()),
        ("--language-model-only --mm-enable-dp-encoder", SM90, {}, {"language-model-only-mm-enable-dp-encoder"}),
        ("--language-model-only --no-mm-enable-dp-encoder", SM90, {}, set()),
        ("--context-length 1048576", SM90, {}, set()),
        ("--context-length 1048577", SM90, {}, {"model-context-length"}),
        ("--context-length 1048577", SM90, {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "true"}, set()),
        ("--quantization fp8", SM90, {}, set()),
        ("--quantization unquant", SM90, {}, set()),
        ("--quantization awq", SM90, {}, {"model-quantization"}),
        ("--quantization modelopt_fp4", SM90, {}, set()),
        ("--quantization modelopt_fp4", HIP, {}, {"model-quantization"}),
        ("--mamba-radix-cache-strategy extra_buffer", SM90, {}, {"model-mamba-cache-strategy"}),
        ("--mamba-radix-cache-strategy extra_buffer --disable-radix-cache", SM90, {}, set()),
        ("--model-config-parser yaml", SM90, {}, {"model-config-parser"}),
        ("--enable-nvidia-megakernel", SM90, {}, {"model-nvidia-megakernel"}),
    ],
)
def test_refusals(line: str, platform: str, env: dict[str, str], rules: set[str]) -> None:
    assert errors(line, platform, env) == rules

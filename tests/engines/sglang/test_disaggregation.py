"""One server of a pair: transfer, allocation, role switching, and the vision tier that 0.5.23 refuses."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, judged, resolved

PREFILL, DECODE = "--disaggregation-mode prefill", "--disaggregation-mode decode"
LATE = "--disaggregation-decode-allocation-policy prefill_complete"
SWITCH = f"{PREFILL} --enable-pd-role-switch"
RECEIVE = "--disaggregation-decode-host-receive-threshold"
STAGING = {"SGLANG_DISAGG_STAGING_BUFFER": "1"}


@pytest.mark.parametrize(
    ("line", "env", "rules"),
    [
        (PREFILL, {}, set()),
        (DECODE, {}, set()),
        (f"{PREFILL} --tp-size 1 {LATE}", {}, set()),
        (f"{PREFILL} {LATE}", {}, {"decode-allocation-after-prefill"}),
        (f"{PREFILL} {LATE} --attn-dp-size 4", {}, {"decode-allocation-after-prefill"}),
        (f"--tp-size 1 {LATE}", {}, {"decode-allocation-after-prefill"}),
        (f"{DECODE} --tp-size 1 {LATE}", STAGING, {"decode-allocation-after-prefill"}),
        (f"{DECODE} {RECEIVE} 0.5", {}, set()),
        (f"{DECODE} {RECEIVE} 1.01", {}, {"host-receive-threshold-range"}),
        (f"{DECODE} {RECEIVE} 0.5 --enable-pd-role-switch", {}, {"host-receive-features"}),
        (f"{DECODE} {RECEIVE} 1 --enable-pd-role-switch", {}, set()),
        (
            f"{DECODE} {RECEIVE} 0.5 --disaggregation-decode-retraction-backup cpu_tensor",
            {},
            {"host-receive-backup"},
        ),
        (f"{PREFILL} {RECEIVE} 0.5", {}, {"retraction-backup-host-pool"}),
        (f"{PREFILL} --disaggregation-transfer-backend fake", {}, {"transfer-fake-prefill"}),
        (f"{DECODE} --disaggregation-transfer-backend fake", {}, set()),
        (
            f"{DECODE} --disaggregation-transfer-backend fake --disaggregation-decode-enable-radix-cache",
            {},
            {"decode-radix-cache-features"},
        ),
        (f"{DECODE} --disaggregation-transfer-backend mooncake_tcp", STAGING, set()),
        (f"{DECODE} --disaggregation-transfer-backend mori", STAGING, {"staging-buffer-backend"}),
        (f"{DECODE} --disaggregation-transfer-backend mori", {"SGLANG_DISAGG_STAGING_BUFFER": "no"}, set()),
        (SWITCH, {}, set()),
        (f"{SWITCH} --ep-size 4", {}, {"role-switch-features"}),
        (f"{SWITCH} --moe-runner-backend megamoe", {}, {"role-switch-features"}),
        (f"{SWITCH} --speculative-algorithm DSPARK", {}, {"role-switch-features"}),
        ("--enable-pd-role-switch --ep-size 4", {}, set()),
        (f"{PREFILL} --disaggregation-ib-device mlx5_0", {}, {"ib-device-present"}),
        (f"{PREFILL} --disaggregation-ib-device mlx5_0 --disaggregation-transfer-backend nixl", {}, set()),
        (f"{PREFILL} --disaggregation-ib-device mlx5_0 --disaggregation-transfer-backend mooncake_tcp", {}, set()),
        ("--disaggregation-ib-device mlx5_0", {}, set()),
        ("--disaggregation-ib-device mlx5_0 --encoder-transfer-backend mooncake", {}, {"ib-device-present"}),
    ],
)
def test_refusals(line: str, env: dict[str, str], rules: set[str]) -> None:
    assert errors(line, env=env) == rules


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("--encoder-only", {"vision-tier-unsupported"}),
        ("--language-only", {"vision-tier-unsupported"}),
        (f"{PREFILL} --language-only", {"vision-tier-unsupported"}),
        (f"--encoder-only {PREFILL}", {"vision-tier-unsupported", "encoder-without-pd-mode"}),
        ("--encoder-only --language-only", {"vision-tier-unsupported", "encoder-and-language"}),
        ("--enable-prefix-mm-cache", {"prefix-mm-cache-encoder"}),
        ("--encoder-only --enable-prefix-mm-cache", {"vision-tier-unsupported"}),
    ],
)
def test_vision_tier(line: str, rules: set[str]) -> None:
    assert errors(line) == rules


def test_another_model_has_a_vision_tier() -> None:
    other = {"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"]}
    assert "vision-tier-unsupported" not in errors("--encoder-only", config=other)
    assert "vision-tier-unsupported" in errors("--encoder-only", config={"model_type": "deepseek_v4"})


@pytest.mark.parametrize(
    ("line", "slots"),
    [
        (PREFILL, None),
        (DECODE, 0),
        (f"{DECODE} --max-running-requests 32", 64),
        (f"{DECODE} --max-running-requests 33", 0),
        (f"{DECODE} --max-running-requests 128 --attn-dp-size 4", 64),
        (f"{DECODE} --max-running-requests 1 --attn-dp-size 4", 2),
        (f"{DECODE} --max-running-requests 32 --disaggregation-decode-extra-slots 5", 5),
    ],
)
def test_small_batches_get_slots_for_requests_in_transfer(line: str, slots: int | None) -> None:
    assert resolved("disaggregation_decode_extra_slots", line) == slots


def test_mooncake_over_tcp_is_mooncake_without_devices() -> None:
    line = f"{PREFILL} --disaggregation-transfer-backend mooncake_tcp --disaggregation-ib-device mlx5_0"
    assert resolved("disaggregation_transfer_backend", line) == "mooncake"
    assert resolved("disaggregation_ib_device", line) is None


def test_findings_show_both_sides() -> None:
    (finding,) = judged(f"{PREFILL} --disaggregation-transfer-backend fake").errors
    assert [(side.field, side.written) for side in finding.sides] == [
        ("--disaggregation-transfer-backend", "fake"),
        ("--disaggregation-mode", "prefill"),
    ]

"""What clients see of a server: HTTP, gRPC, media, names, watermarks, metrics, adapters."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors, judged, resolved

PREFILL, DECODE = "--disaggregation-mode prefill", "--disaggregation-mode decode"
EVENTS = '--kv-events-config {"publisher":"zmq"}'
PUBLISH = "--load-publish-endpoint"
MARK = "--enable-watermark --watermark-config"
AUX = "--enable-return-aux-hidden-states"
LORA = "--enable-lora --max-lora-rank 16 --lora-target-modules q_proj"


@pytest.mark.parametrize(
    ("line", "env", "rules"),
    [
        ("--ssl-ca-certs /ca", {}, {"ssl-files-together"}),
        ("--ssl-keyfile /key", {}, {"ssl-files-together"}),
        ("--ssl-keyfile /key --ssl-certfile /certificate --ssl-ca-certs /ca", {}, set()),
        ("--enable-ssl-refresh", {}, {"ssl-files-together"}),
        ("--enable-http2", {}, {"http2-server"}),
        ("--enable-http2 --http2-max-concurrent-streams 0", {}, {"http2-server", "http2-ranges"}),
        ("--enable-http-worker-reuseport", {}, {"http-workers-reuseport"}),
        ("--enable-http-worker-reuseport --tokenizer-worker-num 2", {}, set()),
        ("--grpc-port 30000", {}, {"grpc-port-differs"}),
        ("", {"SGLANG_GRPC_PORT": "30000"}, {"grpc-port-differs"}),
        ("", {"SGLANG_GRPC_PORT": "port"}, set()),
        ("--grpc-port 30000 --smg-grpc-mode", {}, set()),
        ("--grpc-port 65536", {}, {"grpc-numbers"}),
        ("--smg-grpc-mode --port 55536", {}, {"grpc-numbers"}),
        ("--smg-grpc-mode --port 55535", {}, set()),
        ("--grpc-port 30001", {"SGLANG_GRPC_WORKER_THREADS": "0"}, {"grpc-numbers"}),
        ("", {"SGLANG_GRPC_WORKER_THREADS": "0"}, set()),
        ("--grpc-port 30001 --api-key k", {}, {"grpc-features"}),
        ("--grpc-port 30001 --tokenizer-worker-num 2", {}, {"grpc-features"}),
        ("--sidecar s", {}, {"sidecar-needs-grpc"}),
        ("--sidecar s --grpc-port 30001", {}, set()),
        ("--mm-feature-transport cuda_ipc --nnodes 2", {}, {"media-transport-hardware"}),
        ("--nnodes 2", {"SGLANG_USE_CUDA_IPC_TRANSPORT": "1"}, {"media-transport-hardware"}),
        ("--nnodes 2 --mm-feature-transport cpu", {"SGLANG_USE_CUDA_IPC_TRANSPORT": "1"}, set()),
        ("--mm-process-config {}", {}, set()),
        ('--mm-process-config {"image":1}', {}, {"media-processor-config"}),
        ("--allowed-media-domains a.com [::1] 10.0.0.1", {}, set()),
        ("--allowed-media-domains a.com:80", {}, {"media-domain-name"}),
        ("--allowed-media-domains http://a.com", {}, {"media-domain-name"}),
        ('--limit-mm-data-per-request {"image":2}', {}, set()),
        ('--limit-mm-data-per-request {"pdf":2}', {}, {"request-settings"}),
        ("--default-chat-template-kwargs [1]", {}, {"request-settings"}),
        ('--preferred-sampling-params {"watermark":1}', {}, {"request-settings"}),
        ("--enable-tokenizer-batch-encode --enable-dynamic-batch-tokenizer", {}, {"tokenizer-batching-twice"}),
    ],
)
def test_interfaces(line: str, env: dict[str, str], rules: set[str]) -> None:
    assert errors(line, env=env) == rules


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("--served-model-name a", set()),
        ("--served-model-name a:b", {"served-name-colon"}),
        ("--served-model-name S3://a:b", set()),
        ("--chunked-prefill-size 1024", set()),
        ("--chunked-prefill-size 1000", {"chunk-multiple-of-page"}),
        ("--chunked-prefill-size 512 --attn-dp-size 4", {"chunk-multiple-of-page"}),
        (f"{DECODE} --chunked-prefill-size 1000", set()),
        ("--chunked-prefill-size -1", set()),
        ("--enable-pdmux --chunked-prefill-size -1 --disable-overlap-schedule", set()),
        ("--enable-pdmux --disable-overlap-schedule", {"multiplexing-features"}),
        (f"{PREFILL} --enable-pdmux --chunked-prefill-size -1 --disable-overlap-schedule", {"multiplexing-features"}),
        ("--enable-priority-scheduling --schedule-policy lpm", {"priority-schedule-policy"}),
        ("--enable-priority-scheduling --schedule-policy lof", set()),
        ("--retraction-policy priority", {"priority-retraction"}),
        ("--gc-threshold 1 2 3 4", {"scheduler-numbers"}),
        ("--gc-threshold 1 2 3", set()),
        (f"{PREFILL} --enable-response-store", {"response-store-under-pd"}),
        ("--enable-response-store", set()),
        ("--sampling-mask-max-tokens 0", {"sampling-mask-size"}),
        ("--kv-canary-sweep-interval 1", {"kv-canary-sweep"}),
        ("--kv-canary-sweep-interval 1 --kv-canary log", set()),
        (AUX, {"aux-hidden-states"}),
        (f"{AUX} --speculative-algorithm dspark --return-aux-hidden-state-layer-ids 1 2", set()),
        (f"{AUX} --speculative-algorithm dspark --return-aux-hidden-state-layer-ids 1 1", {"aux-hidden-states"}),
        (f"{AUX} --speculative-algorithm dspark", {"aux-hidden-states"}),
        (f"{AUX} --speculative-algorithm EAGLE3", set()),
        ("--return-aux-hidden-state-layer-ids 1", {"aux-hidden-states"}),
        ("--load-format expert_pack", {"expert-pack-model"}),
        ("--weight-cache-mode client --speculative-algorithm DSPARK", {"weight-cache-speculation"}),
        ("--dllm-algorithm LowConfidence", {"diffusion-decoding"}),
        ("--mamba-max-states-per-path 0", {"mamba-ranges"}),
        ("--mamba-max-states-per-path -1", set()),
    ],
)
def test_late_checks(line: str, rules: set[str]) -> None:
    assert errors(line) == rules


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("--enable-watermark", set()),
        ("--watermark-config {}", {"watermark-needs-switch"}),
        (f'{MARK} {{"key":"0xAB"}}', set()),
        (f'{MARK} {{"key":"xy"}}', {"watermark-config-shape"}),
        (f'{MARK} {{"key":"11112222333344445"}}', {"watermark-config-shape"}),
        (f'{MARK} {{"context_window":65}}', {"watermark-config-shape"}),
        (f'{MARK} {{"keys":1}}', {"watermark-config-shape"}),
        (f'{MARK} {{"max_probability":true}}', {"watermark-config-shape"}),
        (f'{MARK} {{"key_b":"ab"}}', {"watermark-config-values"}),
        (f'{MARK} {{"mixing_probability":0.3}}', {"watermark-config-values"}),
        (f'{MARK} {{"key":"a","key_b":"b","mixing_probability":0.3}}', set()),
        (f'{MARK} {{"default_enabled":true}}', {"watermark-config-values"}),
        (f'{MARK} {{"default_enabled":false}}', set()),
        (f'{MARK} {{"max_probability":0}}', {"watermark-config-values"}),
        (f"{PREFILL} --enable-watermark", {"watermark-features"}),
        ("--enable-watermark --speculative-algorithm DSPARK", {"watermark-features"}),
    ],
)
def test_watermarks(line: str, rules: set[str]) -> None:
    assert errors(line) == rules


@pytest.mark.parametrize(
    ("line", "faulty"),
    [
        (f"{PUBLISH} off", False),
        (f"{PUBLISH} auto", True),
        (f"{PUBLISH} auto {EVENTS}", False),
        (f'{PUBLISH} auto --kv-events-config {{"publisher":"zmq","endpoint":"tcp://10.0.0.1:5557"}}', True),
        (f'{PUBLISH} auto --kv-events-config {{"publisher":"zmq","endpoint":"tcp://*:65535"}}', True),
        (f'{PUBLISH} auto --kv-events-config {{"publisher":"zmq","hwm":"many"}}', True),
        (f"{PUBLISH} auto --kv-events-config {{}}", True),
        (f"{PUBLISH} tcp://*:5558 {EVENTS}", False),
        (f"{PUBLISH} tcp://*:5558 {EVENTS} --attn-dp-size 4", True),
        (f"{PUBLISH} tcp://*:5561 {EVENTS} --attn-dp-size 4", False),
        (f"{PUBLISH} tcp://10.0.0.1:6000 {EVENTS}", True),
        (f"{PUBLISH} tcp://[::]:6000 {EVENTS}", False),
    ],
)
def test_load_is_published_beside_the_events(line: str, *, faulty: bool) -> None:
    assert errors(line) == ({"load-publish-endpoint"} if faulty else set())


@pytest.mark.parametrize(
    ("words", "faulty"),
    [
        ("default", False),
        ("tse 10 2 5", False),
        ("tse 10 1 5", True),
        ("tse 10 2", True),
        ("custom 1 0", False),
        ("custom 1 1", True),
        ("custom", True),
        ("other", True),
    ],
)
def test_buckets(words: str, *, faulty: bool) -> None:
    assert errors(f"--generation-tokens-buckets {words}") == ({"token-buckets"} if faulty else set())


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("--enable-lora", {"lora-shape"}),
        (LORA, set()),
        ("--lora-paths a=/a", set()),
        ("--enable-lora --max-lora-rank 16 --lora-target-modules all q_proj", {"lora-shape"}),
        (f"{LORA} --max-loaded-loras 7", {"lora-counts"}),
        (f"{LORA} --max-loaded-loras 8", set()),
        (f"{LORA} --enable-lora-overlap-loading", {"lora-counts"}),
        (f"{LORA} --enable-lora-overlap-loading --max-loaded-loras 16", set()),
        (f"{LORA} --enable-lora-overlap-loading --max-loaded-loras 17", {"lora-counts"}),
        ("--max-loras-per-batch 0", {"lora-batch-positive"}),
        # An adaptive draft length is for other algorithms: the engine drops it with DSpark.
        (f"{LORA} --speculative-algorithm DSPARK --speculative-adaptive", set()),
        (f"{LORA} --lora-backend triton_v2", set()),
        (f"{LORA} --lora-backend triton_v2 --attn-dp-size 4", {"lora-kernels"}),
        ("--moe-runner-backend lora_triton", {"lora-moe-runner"}),
        ("--moe-runner-backend experimental_sgl_marlin", set()),
        (f"{LORA} --moe-runner-backend experimental_sgl_marlin", {"marlin-lora"}),
    ],
)
def test_adapters(line: str, rules: set[str]) -> None:
    assert errors(line) == rules


def test_hardware() -> None:
    assert errors("--enable-deepseek-v4-fp4-indexer") == {"fp4-indexer-hardware"}
    assert errors("--enable-deepseek-v4-fp4-indexer", "cuda-sm100") == set()
    assert errors("--enable-deepseek-v4-fp4-indexer", "hip-gfx950") == set()
    assert errors("--mm-feature-transport cuda_vmm", "hip-gfx950") == {"media-transport-hardware"}
    assert errors(f"{LORA} --lora-backend triton_v2", "hip-gfx950") == {"lora-kernels"}


def test_optimistic_prefill_is_dropped_where_the_cache_cannot_take_it() -> None:
    storage = f"{PREFILL} --optimistic-prefill-attempts 2 --enable-hierarchical-cache --hicache-storage-backend file"
    assert resolved("optimistic_prefill_attempts", storage) == 0
    assert "optimistic-prefill-dropped" in {finding.rule for finding in judged(storage).findings}
    assert resolved("optimistic_prefill_attempts", f"{PREFILL} --optimistic-prefill-attempts 2") == 2
    late = f"{PREFILL} --tp-size 1 --disaggregation-decode-allocation-policy prefill_complete"
    assert resolved("optimistic_prefill_attempts", late) == 1
    assert errors(f"{late} --optimistic-prefill-attempts -1") == {"optimistic-prefill-attempts"}

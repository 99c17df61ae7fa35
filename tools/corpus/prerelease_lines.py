"""Command lines that the two commits before the release judge by rules of their own, as their source states them.

Each is refused by the versions named and accepted, as the same line, by all others that are asked.
"""

from __future__ import annotations

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

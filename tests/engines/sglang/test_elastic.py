"""Experts that move: what rebalancing and growing need."""

from __future__ import annotations

import pytest

from tests.engines.sglang.verdict import errors

GROWS = (
    "--elastic-ep-backend mooncake --max-ep-size 16 --moe-a2a-backend nixl --attn-dp-size 4 --enable-dp-lm-head "
    "--moe-dense-tp-size 1"
)
JOINS = f"{GROWS} --elastic-ep-join-mode scale --node-rank 1 --nnodes 2 --dist-init-addr a:1"
MARLIN = "--moe-runner-backend experimental_sgl_marlin"
LORA = "--enable-lora --max-lora-rank 8 --lora-target-modules all"


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("--enable-eplb", {"eplb-needs-expert-parallelism"}),
        ("--enable-eplb --ep-size 2", set()),
        ("--enable-eplb --moe-a2a-backend deepep", set()),
        ("--ep-dispatch-algorithm static", {"expert-dispatch-without-exchange"}),
        ("--ep-dispatch-algorithm dynamic", set()),
        ("--ep-dispatch-algorithm static --moe-a2a-backend deepep", set()),
        (f"{MARLIN} --moe-a2a-backend deepep", {"marlin-exchange"}),
        (f"{MARLIN} --ep-size 4", set()),
        (f"{MARLIN} {LORA}", {"marlin-lora"}),
        (f"{MARLIN} {LORA} --lora-use-virtual-experts --lora-backend triton", set()),
        (f"{MARLIN} {LORA} --lora-use-virtual-experts --lora-backend triton --ep-size 4", set()),
        (
            f"{MARLIN} {LORA} --lora-use-virtual-experts --lora-backend triton --ep-size 4 --enable-eplb",
            {"marlin-lora"},
        ),
    ],
)
def test_moving_experts(line: str, rules: set[str]) -> None:
    assert errors(line) == rules


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("--elastic-ep-backend mooncake", set()),
        ("--elastic-ep-backend nixl --enable-eplb --ep-size 4", set()),
        ("--elastic-ep-backend nixl --enable-eplb --ep-size 4 --eplb-algorithm deepseek", {"elastic-eplb-algorithm"}),
        ("--elastic-ep-backend mooncake --mooncake-ib-device mlx5_0", {"elastic-ib-device"}),
        ("--elastic-ep-backend nixl --mooncake-ib-device mlx5_0", set()),
        ("--max-ep-size 4", {"elastic-backend-missing"}),
        ("--max-ep-size 4 --elastic-ep-backend nixl", set()),
        ("--max-ep-size 0 --elastic-ep-backend nixl", {"elastic-joiner"}),
        ("--elastic-ep-join-mode recover", {"elastic-backend-missing"}),
        ("--elastic-ep-join-mode recover --elastic-ep-backend nixl", set()),
        ("--elastic-ep-join-rank-offset 4", {"elastic-joiner"}),
        ("--elastic-ep-initial-size 4", {"elastic-initial-size"}),
    ],
)
def test_elastic_ranks(line: str, rules: set[str]) -> None:
    assert errors(line) == rules


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        (GROWS, set()),
        (f"{GROWS} --elastic-ep-initial-size 4", set()),
        (f"{GROWS} --elastic-ep-initial-size 8", {"elastic-initial-size"}),
        (f"{GROWS} --moe-a2a-backend deepep", {"elastic-layout"}),
        (f"{GROWS} --load-balance-method total_tokens", {"elastic-layout"}),
        (f"{GROWS} --disaggregation-mode prefill", {"elastic-layout"}),
        (f"{GROWS} --disaggregation-mode decode", set()),
        (f"{GROWS} --attn-dp-size 2", set()),
        (f"{GROWS} --attn-dp-size 2 --moe-dense-tp-size 4", {"elastic-layout"}),
        (f"{GROWS} --moe-dense-tp-size 4", set()),
        (f"{GROWS} --attn-dp-size 2 --max-ep-size 15", {"elastic-replicas"}),
        (f"{GROWS} --attn-dp-size 4 --max-ep-size 15", set()),
        (f"{GROWS} --tokenizer-worker-num 2", {"elastic-process"}),
        (f"{GROWS} --elastic-ep-scale-timeout 0", {"elastic-process"}),
        (f"{GROWS} --cuda-graph-backend-decode breakable", {"elastic-graph"}),
        (f"{GROWS} --cuda-graph-backend-decode disabled", set()),
        (f"{JOINS} --elastic-ep-join-rank-offset 4 --elastic-ep-initial-size 4", set()),
        (f"{JOINS} --elastic-ep-join-rank-offset 12 --elastic-ep-initial-size 4", set()),
        (f"{JOINS} --elastic-ep-join-rank-offset 13 --elastic-ep-initial-size 4", {"elastic-initial-size"}),
        (f"{JOINS} --elastic-ep-join-rank-offset 4", {"elastic-initial-size"}),
        (f"{JOINS} --elastic-ep-join-rank-offset 4 --elastic-ep-initial-size 8", {"elastic-initial-size"}),
        (f"{JOINS} --elastic-ep-initial-size 4", {"elastic-joiner", "elastic-initial-size"}),
        (
            f"{JOINS} --elastic-ep-join-rank-offset 4 --elastic-ep-initial-size 4 --node-rank 0",
            {"elastic-joiner"},
        ),
    ],
)
def test_growing(line: str, rules: set[str]) -> None:
    assert errors(line) == rules

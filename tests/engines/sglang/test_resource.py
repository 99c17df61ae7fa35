"""What a pod is given against what its flags take: judged is what will run, defaults included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.engines.sglang.verdict import judged_spec, severities

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLES = {"P/env/SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE": "1"}
CACHE = {"P/args/enable-hierarchical-cache": True}
MEMORY = (
    "engram-host-memory",
    "hicache-memory",
    "hicache-headroom",
    "host-memory-sum",
    "host-memory-headroom",
    "shm-memory",
    "shm-large",
)


def _memory(changes: Mapping[str, Any]) -> dict[str, str]:
    return {rule: severity for rule, severity in severities(changes).items() if rule in MEMORY}


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({"P/resources/memory": None}, {}),
        ({"P/resources/memory": None, "P/resources/shm": None}, {}),
        ({"P/resources/memory": None, "P/resources/shm": "64Gi"}, {}),
        ({"P/resources/memory": None, "P/resources/shm": "65Gi"}, {"shm-large": "warning"}),
        ({"P/resources/memory": None, "P/resources/shm": "128Gi"}, {"shm-memory": "error"}),
        ({"P/resources/memory": "8Gi", "P/resources/shm": None}, {}),
        ({**TABLES, "P/resources/memory": None}, {"engram-host-memory": "error"}),
        ({**CACHE, "P/args/hicache-size": 35, "P/resources/memory": None}, {"hicache-memory": "error"}),
        # 188.8 GiB of tables, and of caches 4 ranks with 20 GB, which is 74.5 GiB.
        ({**TABLES, **CACHE, "P/args/hicache-size": 20, "P/resources/memory": "263Gi"}, {"host-memory-sum": "error"}),
        (
            {**TABLES, **CACHE, "P/args/hicache-size": 20, "P/resources/memory": "264Gi"},
            {"host-memory-headroom": "warning"},
        ),
        (
            {**TABLES, **CACHE, "P/args/hicache-size": 20, "P/resources/memory": "311Gi"},
            {"host-memory-headroom": "warning"},
        ),
        ({**TABLES, **CACHE, "P/args/hicache-size": 20, "P/resources/memory": "312Gi"}, {}),
        (
            {**TABLES, **CACHE, "P/args/hicache-size": 60, "P/resources/memory": "188Gi"},
            {"engram-host-memory": "error", "hicache-memory": "error"},
        ),
        (
            {**TABLES, **CACHE, "P/args/hicache-size": 20, "P/resources/memory": "188Gi"},
            {"engram-host-memory": "error"},
        ),
        ({**TABLES, "P/resources/memory": "236Gi"}, {"host-memory-headroom": "warning"}),
        ({**TABLES, "P/resources/memory": "237Gi"}, {}),
        # Two replicas in one pod are eight ranks.
        (
            {
                **CACHE,
                "P/args/hicache-size": 20,
                "P/args/dp-size": 2,
                "P/resources/gpu": 8,
                "P/resources/memory": "148Gi",
            },
            {"hicache-memory": "error"},
        ),
    ],
)
def test_host_memory(changes: Mapping[str, Any], rules: Mapping[str, str]) -> None:
    assert _memory(changes) == rules


def test_default_memory_is_shown_as_one_would_write_it() -> None:
    (finding,) = judged_spec({**TABLES, "P/resources/memory": None}).errors
    assert "spec.roles.prefill.resources.memory not set, so 128Gi" in str(finding)
    (finding,) = judged_spec({**TABLES, "P/resources/memory": "188Gi"}).errors
    assert "spec.roles.prefill.resources.memory = 188Gi," in str(finding)


@pytest.mark.parametrize(
    ("weights", "share", "rules"),
    [
        (90, 0.5, {"memory-share-weights"}),
        (90, 0.51, set()),
        (90, None, set()),
        (179, 0.99, {"memory-share-weights"}),
        (180, 0.99, {"weights-gpu-memory"}),
        (180, None, {"weights-gpu-memory"}),
        (None, 0.1, set()),
    ],
)
def test_memory_share(weights: int | None, share: float | None, rules: set[str]) -> None:
    changes = {"P/args/mem-fraction-static": share, "D/args/mem-fraction-static": None}
    actual = severities(changes if weights is None else {**changes, "model/weightsGiBPerGpu": weights})
    assert {rule for rule in actual if rule in {"memory-share-weights", "weights-gpu-memory"}} == rules


@pytest.mark.parametrize(
    ("args", "blocks"),
    [
        ({"tp-size": 16}, True),
        ({"tp-size": 16, "ep-size": 2}, False),
        ({"tp-size": 16, "moe-a2a-backend": "deepep"}, False),
        ({"tp-size": 8}, False),
    ],
)
def test_quantised_blocks_follow_the_resolved_expert_ranks(args: Mapping[str, Any], blocks: bool) -> None:
    changes = {f"P/args/{name}": value for name, value in args.items()}
    assert ("tp-quantisation-block" in severities(changes)) == blocks


def test_a_gated_launch_leaves_the_pod_unready() -> None:
    assert severities({"P/args/gated-launch-port": 8080}).get("gated-launch") == "warning"
    assert "gated-launch" not in severities({})


@pytest.mark.parametrize("flag", ["is-embedding", "use-ray", "base-gpu-id"])
def test_flags_that_make_a_pod_useless_are_owned(flag: str) -> None:
    value = 1 if flag == "base-gpu-id" else True
    assert severities({f"P/args/{flag}": value})["flag-owned"] == "error"


@pytest.mark.parametrize("value", ["1", "true"])
def test_the_rust_server_hides_the_bootstrap_port(value: str) -> None:
    assert severities({"P/env/SGLANG_RUST_SERVER": value})["rust-server-prefill"] == "error"
    assert "rust-server-prefill" not in severities({"D/env/SGLANG_RUST_SERVER": value})
    moved = {"P/env/SGLANG_RUST_SERVER": value, "transfer/bootstrapPort": 9100}
    assert [error.rule for error in judged_spec(moved).errors] == ["rust-server-bootstrap-port"]

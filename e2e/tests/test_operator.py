"""The operator as installed: how fast it acts, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from e2e.fleet import MANY, operator_pods, resident_bytes

if TYPE_CHECKING:
    from e2e.fleet import Fleet
    from e2e.kube import Kube


def test_apply_to_first_child_within_a_second(many: Fleet) -> None:
    p95 = many.seconds[int(0.95 * MANY) - 1]
    assert p95 <= 1.0, many.seconds


def test_memory_with_twenty_deployments(operator: Kube, many: Fleet) -> None:
    assert len(operator_pods(operator)) == 2
    for pod in operator_pods(operator):
        assert resident_bytes(operator, pod) <= 150 * 2**20

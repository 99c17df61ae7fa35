"""What the operator costs, measured on the installed one: seconds from apply to first child, and memory.

Twenty deployments are applied one after the other; their pods are on fake nodes. The local cluster is prepared first.
"""

from __future__ import annotations

import argparse
import json
import statistics

from e2e import stack as stacks
from e2e.fleet import MANY, launch, operator_pods, resident_bytes
from e2e.kube import Kube

NAMESPACE = "bench-operator"


def measure(kube: Kube) -> dict[str, float]:
    """Apply the deployments and read the figures."""

    def namespace(_: str) -> str:
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        return NAMESPACE

    try:
        fleet = launch(kube, namespace)
        memory = [resident_bytes(kube, pod) / 2**20 for pod in operator_pods(kube)]
    finally:
        kube.delete("v1", "Namespace", None, NAMESPACE)
    return {
        "deployments": MANY,
        "first_child_median_s": round(statistics.median(fleet.seconds), 3),
        "first_child_p95_s": round(fleet.seconds[int(0.95 * MANY) - 1], 3),
        "first_child_max_s": round(fleet.seconds[-1], 3),
        "leader_memory_mib": round(max(memory), 1),
        "standby_memory_mib": round(min(memory), 1),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.operator", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    as_json = parser.parse_args().json
    stack = stacks.prepare()
    stacks.install(stack)
    figures = measure(Kube(stack.kubeconfig, manager="epd-bench"))
    print(json.dumps(figures) if as_json else "\n".join(f"{name:22} {value:g}" for name, value in figures.items()))


if __name__ == "__main__":
    main()

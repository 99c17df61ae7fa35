"""Fake nodes: pods bound to them become Ready without a container, so that hundreds fit on one machine."""

from __future__ import annotations

import json
from typing import Any

from tools import program
from tools.cluster import access
from tools.program import Unfit

ANNOTATION = "kwok.x-k8s.io/node"
TAINT = {"key": ANNOTATION, "value": "fake", "effect": "NoSchedule"}
TOLERATION = {"key": ANNOTATION, "operator": "Equal", "value": "fake", "effect": "NoSchedule"}
"""What a pod needs to be placed on a fake node (with `NODE_SELECTOR` it lands nowhere else)."""
NODE_SELECTOR = {"type": "kwok"}


def node(index: int) -> dict[str, Any]:
    """Return a fake node: 64 CPUs, 512 GiB, 250 pods, and a taint that keeps ordinary pods away."""
    name = f"kwok-{index}"
    capacity = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "250"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {ANNOTATION: "fake"},
            "labels": {
                **NODE_SELECTOR,
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
        },
        "spec": {"taints": [TAINT]},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def add_nodes(count: int) -> list[str]:
    """Make sure that `count` fake nodes exist, and wait until they are Ready.

    Args:
        count: How many, 1 to 1000; nodes beyond it from an earlier call stay.

    Returns:
        Their names, ``kwok-0`` onwards.

    Raises:
        Unfit: The cluster refuses them or they do not become Ready (does kwok run there?).
        ValueError: `count` is out of range.
    """
    if not 1 <= count <= 1000:
        raise ValueError(f"count is {count}; it must be 1 to 1000")
    nodes = [node(index) for index in range(count)]
    _kubectl("apply", "--server-side", "-f", "-", document={"apiVersion": "v1", "kind": "List", "items": nodes})
    names = [node["metadata"]["name"] for node in nodes]
    _kubectl("wait", "--for=condition=Ready", "--timeout=60s", *(f"node/{name}" for name in names))
    return names


def _kubectl(*arguments: str, document: dict[str, Any] | None = None) -> None:
    done = program.run([*access.kubectl(), *arguments], text=json.dumps(document) if document else None)
    if done.returncode:
        raise Unfit(f"kubectl {' '.join(arguments[:2])} failed:\n{done.stderr.strip()}")

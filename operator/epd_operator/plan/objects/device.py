"""What pods take from their node beyond CPU: GPUs, RDMA devices, shared memory, the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.api.quantity import stored
from epd_operator.plan.objects import security

if TYPE_CHECKING:
    from epd_operator.engines.effective import EffectiveRole
    from epd_operator.plan.render_context import RenderContext


def resources(context: RenderContext, role: EffectiveRole) -> dict[str, Any]:
    """Requests and limits of the engine's container."""
    counts: dict[str, str] = {}
    gpu = context.profile.hardware(context.effective.platform).gpu
    if gpu is not None and role.gpu:
        counts[gpu] = str(role.gpu)
    if role.rdma:
        counts[context.settings.rdma_resource] = str(role.rdma)
    # CPU is a request only: a limit would throttle an engine in the middle of a step.
    cpu, memory = stored(role.cpu), stored(role.memory)
    return {"requests": {"cpu": cpu, "memory": memory, **counts}, "limits": {"memory": memory, **counts}}


def tolerations(context: RenderContext, role: EffectiveRole) -> list[dict[str, str]]:
    """Taints that keep other pods off GPU nodes."""
    gpu = context.profile.hardware(context.effective.platform).gpu
    return [{"key": gpu, "operator": "Exists", "effect": "NoSchedule"}] if gpu is not None and role.gpu else []


def volumes(role: EffectiveRole) -> list[dict[str, Any]]:
    """Shared memory of the pod's own; the memory limit of the container that writes to it counts what lies there."""
    if role.shm is None:
        return []
    return [{"name": security.SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": role.shm}}]


def mounts(role: EffectiveRole) -> list[dict[str, Any]]:
    """Mounts of `volumes`."""
    return [] if role.shm is None else [{"name": security.SHM_VOLUME, "mountPath": security.SHM_PATH}]


def network(role: EffectiveRole) -> dict[str, Any]:
    """The part of a pod spec that puts it on its node's network, names of Services included."""
    return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if role.host_network else {}


def ports(context: RenderContext, role: EffectiveRole) -> list[dict[str, Any]]:
    """Ports of the engine's container.

    On the node's network each of them is the node's: declared as host ports, the scheduler never puts two pods with one
    port on one node, and says "free ports" where that leaves a pod without a node.
    """
    result = []
    for port in context.profile.ports(role.name, context.effective.bootstrap_port):
        entry: dict[str, Any] = {"name": port.name, "containerPort": port.number, "protocol": "TCP"}
        result.append({**entry, "hostPort": port.number} if role.host_network else entry)
    return result

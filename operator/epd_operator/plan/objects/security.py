"""The restricted pod security profile, which every pod of this operator meets, and the volumes that follow from it."""

from __future__ import annotations

from typing import Any, Final

USER: Final = 65532
"""Numeric, so that the kubelet can prove runAsNonRoot without reading the image."""

SHM_VOLUME: Final = "epd-shm"
SHM_PATH: Final = "/dev/shm"  # noqa: S108 - a memory-backed volume of the pod, not the node's

SCRATCH_VOLUME: Final = "epd-tmp"
SCRATCH_PATH: Final = "/tmp"  # noqa: S108 - a private emptyDir of the pod, not a shared directory


def pod_security() -> dict[str, Any]:
    """`spec.securityContext` of a pod; the group may read mounted Secrets and tokens."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """`securityContext` of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def scratch_volume() -> dict[str, Any]:
    """The only place where a container may write."""
    return {"name": SCRATCH_VOLUME, "emptyDir": {}}


def scratch_mount() -> dict[str, Any]:
    """Mount of `scratch_volume`."""
    return {"name": SCRATCH_VOLUME, "mountPath": SCRATCH_PATH}

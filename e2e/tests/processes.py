"""The processes of pods, where the cluster's pods are processes of this machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def kill(pod: str) -> bool:
    """End every process of a pod by SIGKILL, which no drain outlives; False where the pod's processes are elsewhere.

    Deleting a pod without grace is no substitute: its kubelet still gives it the time to drain.
    """
    actual = False
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"HOSTNAME={pod}".encode() in environment:
            os.kill(int(entry.name), signal.SIGKILL)
            actual = True
    return actual

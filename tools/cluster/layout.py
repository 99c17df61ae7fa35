"""Names, addresses and folders: every constant that two modules share."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
GO_MODULES = Path(__file__).resolve().parent / "go"
STATE = CHECKOUT / ".state" / "cluster"
RUN = STATE / "run"
"""Sockets, bundles and mounts: worthless after a reboot, so `up` empties it when the boot changed."""
LOGS = STATE / "logs"
CONFIG = STATE / "config"
CERTIFICATES = STATE / "certificates"
KUBECONFIG = STATE / "kubeconfig"
AUDIT_LOG = STATE / "audit.jsonl"
CONTAINERD_SOCKET = RUN / "containerd.sock"

CONTEXT = "epd-local"
NODE = "epd-local"
NAMESPACE = "epd"
"""Name of the network namespace, and of the cgroup that holds every pod."""
NAMESPACE_FILE = Path("/run/netns") / NAMESPACE
BRIDGE = "epd0"
HOST_LINK = "epd-host"
"""The machine's end of the veth pair (15 characters at most)."""
BRIDGE_LINK = "epd-uplink"

NODE_ADDRESS = "10.244.0.1"
HOST_ADDRESS = "10.244.0.254"
POD_NETWORK = "10.244.0.0/24"
POD_RANGE = ("10.244.0.2", "10.244.0.250")
SERVICE_NETWORK = "10.96.0.0/12"
API_SERVICE_ADDRESS = "10.96.0.1"
FAKE_POD_NETWORK = "10.244.128.1/17"
"""Addresses of pods on kwok nodes: no route leads there, so a probe of one fails at once instead of hanging."""
CLUSTER_DOMAIN = "cluster.local"
API_URL = f"https://{NODE_ADDRESS}:6443"
REGISTRY = f"{NODE_ADDRESS}:5000"
PAUSE_IMAGE = "localhost/epd/pause:1"


def cache_folder() -> Path:
    """Return the folder for what outlives the checkout: binaries and the registry's layers.

    Returns:
        ``$XDG_CACHE_HOME/epd``, or ``~/.cache/epd`` (the XDG base directory rule: a relative value is ignored).
    """
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (configured if configured.is_absolute() else Path.home() / ".cache") / "epd"

"""Kubeconfig files, one per identity, with the certificates inside so that a copy of the file works anywhere."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tools.cluster import certificates
from tools.cluster.layout import API_URL, CONFIG, CONTEXT, KUBECONFIG


def path(identity: str) -> Path:
    """Return the kubeconfig of a component's identity."""
    return CONFIG / f"{identity}.kubeconfig"


def write() -> None:
    """Write the admin's kubeconfig and one for every component that talks to the API server."""
    CONFIG.mkdir(parents=True, exist_ok=True)
    for identity in ("controller-manager", "scheduler", "kubelet", "proxy", "dns", "kwok"):
        _write(path(identity), identity)
    _write(KUBECONFIG, "admin")


def document(identity: str) -> dict[str, object]:
    """Return a kubeconfig with the single context `epd-local`."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": CONTEXT,
                "cluster": {
                    "server": API_URL,
                    "certificate-authority-data": _base64(certificates.certificate("ca")),
                },
            }
        ],
        "users": [
            {
                "name": identity,
                "user": {
                    "client-certificate-data": _base64(certificates.certificate(identity)),
                    "client-key-data": _base64(certificates.key(identity)),
                },
            }
        ],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": identity, "namespace": "default"}}],
        "current-context": CONTEXT,
    }


def _write(target: Path, identity: str) -> None:
    text = json.dumps(document(identity), indent=2) + "\n"  # JSON is YAML, and needs no library
    if target.exists() and target.read_text(encoding="ascii") == text:
        return
    fresh = Path(f"{target}.new")
    fresh.touch(mode=0o600)
    fresh.write_text(text, encoding="ascii")
    fresh.replace(target)


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode("ascii")

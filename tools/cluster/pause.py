"""The image of every pod's sandbox: one static busybox that sleeps, so that no image must come from outside."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from pathlib import Path

from tools import program
from tools.cluster import machine
from tools.cluster.layout import CONTAINERD_SOCKET, PAUSE_IMAGE
from tools.program import Unfit


def archive(busybox: bytes, architecture: str) -> bytes:
    """Return a docker archive with one layer that holds `/busybox`.

    Args:
        busybox: A statically linked busybox.
        architecture: Go's name of the processor (``amd64``, ``arm64``).

    Returns:
        The tar file; the same input gives the same bytes.
    """
    layer = _tar({"busybox": (busybox, 0o755)})
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": ["/busybox", "sleep", "2147483647"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]}]).encode()
    files = {"manifest.json": manifest, "config.json": config, "layer.tar": layer}
    return _tar({name: (content, 0o644) for name, content in files.items()})


def ensure() -> None:
    """Import the image into our containerd (a tenth of a second, so it is not asked whether it is there).

    Raises:
        Unfit: containerd refused it.
    """
    machines = {"x86_64": "amd64", "aarch64": "arm64"}
    architecture = machines.get(machine.processor(), machine.processor())
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        file.write(archive(Path(program.path("busybox")).read_bytes(), architecture))
        file.flush()
        client = ["ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io"]
        done = program.run([*client, "images", "import", file.name])
    if done.returncode:
        raise Unfit(f"containerd refused the pause image:\n{done.stderr.strip()}")


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return target.getvalue()

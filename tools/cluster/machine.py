"""What the machine must offer, checked before anything is changed, all faults at once."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools import packages, program
from tools.cluster.layout import BRIDGE_LINK, CONTAINERD_SOCKET, HOST_LINK, POD_NETWORK, SERVICE_NETWORK
from tools.program import Unfit

if TYPE_CHECKING:
    from collections.abc import Sequence

GO_MINIMUM = (1, 26)
SOCKET_PATH_LIMIT = 107
"""`sun_path` holds 108 bytes with its closing zero."""
FREE_BYTES_WANTED = 8 * 1024**3

ELSEWHERE = (
    "Any other cluster will do: set KUBECONFIG to the file of one that you may use for tests (for instance one of "
    "`kind create cluster`) and run the same commands again; they will use it and never change how it is set up."
)


@dataclass(frozen=True)
class Facts:
    """What `faults` judges, so that tests can describe any machine.

    Attributes:
        platform: ``sys.platform``.
        uid: Effective user id.
        controllers: cgroup controllers the kernel offers (v1 and v2).
        filesystems: Names in ``/proc/filesystems``.
        go: Version of the Go tool chain, None when there is none.
        go_needed: False once every program is cached.
        socket_path: Longest socket path the cluster will use.
        routes: Destinations of the machine's routes through other links than ours.
        free_bytes: Free space where the state folder lies.
    """

    platform: str
    uid: int
    controllers: frozenset[str]
    filesystems: frozenset[str]
    go: tuple[int, int] | None
    go_needed: bool
    socket_path: str
    routes: tuple[str, ...]
    free_bytes: int


def faults(facts: Facts) -> list[str]:
    """List everything that keeps a machine from running the cluster, each with its way out."""
    if facts.platform != "linux":
        return [f"The operating system is {facts.platform}; the cluster needs Linux (namespaces, cgroups, overlayfs)."]
    result = []
    if facts.uid != 0:
        result.append(f"The user id is {facts.uid}; containers, network and mounts need root: run it with sudo -E.")
    if facts.go_needed and (fault := go_fault(facts.go)) is not None:
        result.append(fault)
    lacking = sorted({"cpu", "cpuset", "memory", "pids"} - facts.controllers)
    if lacking:
        result.append(f"The kernel offers no cgroup controller {', '.join(lacking)}; the kubelet needs it.")
    if "overlay" not in facts.filesystems:
        result.append("The kernel has no overlay file system (`modprobe overlay`).")
    if len(facts.socket_path) > SOCKET_PATH_LIMIT:
        result.append(
            f"The path {facts.socket_path} has {len(facts.socket_path)} characters; a socket's may have "
            f"{SOCKET_PATH_LIMIT}: move the checkout to a shorter path."
        )
    result.extend(_overlaps(facts.routes))
    if facts.free_bytes < FREE_BYTES_WANTED:
        result.append(
            f"Only {facts.free_bytes / 1024**3:.1f} GiB are free for the state folder; images and pods take 8 GiB."
        )
    return result


def _overlaps(routes: Sequence[str]) -> list[str]:
    return [
        f"The machine already routes {route}, which overlaps the cluster's {ours}: "
        "leave that network (a VPN?) or use another cluster."
        for route in routes
        for ours in (POD_NETWORK, SERVICE_NETWORK)
        if ipaddress.ip_network(route, strict=False).overlaps(ipaddress.ip_network(ours))
    ]


def survey(*, go_needed: bool, state: Path) -> Facts:
    """Look at this machine."""
    linux = sys.platform == "linux"
    return Facts(
        platform=sys.platform,
        uid=os.geteuid(),
        controllers=_controllers() if linux else frozenset(),
        filesystems=_filesystems() if linux else frozenset(),
        go=go_version(),
        go_needed=go_needed,
        socket_path=str(CONTAINERD_SOCKET) + ".ttrpc",
        routes=routes(Path("/proc/net/route").read_text(encoding="ascii")) if linux else (),
        free_bytes=shutil.disk_usage(_existing(state)).free,
    )


def go_version() -> tuple[int, int] | None:
    """Return the Go tool chain's version, None without one."""
    if packages.which("go") is None:
        return None
    done = program.run(["go", "env", "GOVERSION"])
    match = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else None


def go_fault(version: tuple[int, int] | None) -> str | None:
    """Say what is wrong with a Go tool chain and the way out; None where nothing is."""
    want = ".".join(map(str, GO_MINIMUM))
    if version is None:
        return f"There is no `go` on PATH; Kubernetes is built from Go modules: install Go {want} or newer (go.dev/dl)."
    if version < GO_MINIMUM:
        have = ".".join(map(str, version))
        return f"Go is version {have}; Kubernetes needs {want} or newer (go.dev/dl)."
    return None


def require_go() -> None:
    """Raise Unfit unless a recent enough Go is there."""
    if (fault := go_fault(go_version())) is not None:
        raise Unfit(f"{fault}\n{ELSEWHERE}")


def cgroup_v2() -> bool:
    """Say whether the machine has the unified cgroup hierarchy only (hybrid counts as v1, as the kubelet counts it)."""
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


def cgroup_driver() -> str:
    """Return the kubelet's cgroup driver: systemd where it owns a unified hierarchy, cgroupfs everywhere else."""
    return "systemd" if cgroup_v2() and Path("/run/systemd/system").is_dir() else "cgroupfs"


def snapshotter(folder: Path, mounts: str) -> str:
    """Return containerd's snapshotter for a folder: an overlay cannot lie on an overlay (a container's own disk).

    Args:
        folder: Where containerd will keep images.
        mounts: The text of ``/proc/self/mounts``.
    """
    best, kind = "", ""
    for line in mounts.splitlines():
        _, point, filesystem, *_ = line.split()
        if len(point) >= len(best) and folder.is_relative_to(point.replace("\\040", " ")):
            best, kind = point, filesystem
    return "native" if kind == "overlay" else "overlayfs"


def _controllers() -> frozenset[str]:
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    if unified.exists():
        return frozenset(unified.read_text(encoding="ascii").split())
    rows = Path("/proc/cgroups").read_text(encoding="ascii").splitlines()[1:]
    return frozenset(row.split()[0] for row in rows if row.split()[3] == "1")


def _filesystems() -> frozenset[str]:
    text = Path("/proc/filesystems").read_text(encoding="ascii")
    return frozenset(line.split()[-1] for line in text.splitlines() if line.strip())


def routes(table: str, ours: Sequence[str] = (HOST_LINK, BRIDGE_LINK)) -> tuple[str, ...]:
    """Read the kernel's own table of IPv4 routes, which needs no program; default routes are left out.

    Args:
        table: The text of ``/proc/net/route``; destination and mask are the 32 bits of network order, as this
            machine's own byte order writes them.
        ours: Links whose routes do not count.

    Returns:
        The destinations, such as ``192.168.1.0/24``.
    """
    rows = [line.split() for line in table.splitlines()[1:]]
    networks = [(_address(row[1]), _address(row[7])) for row in rows if row[0] not in ours]
    return tuple(str(ipaddress.ip_network(f"{address}/{mask}")) for address, mask in networks if int(mask))


def _address(word: str) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(word, 16).to_bytes(4, sys.byteorder))


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def processor() -> str:
    """Return the kernel's name of the processor (``x86_64``, ``aarch64``)."""
    return os.uname().machine

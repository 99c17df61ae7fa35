"""What the machine must offer, checked before anything is changed, all faults at once."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools import progress
from tools.cluster.layout import BRIDGE_LINK, CONTAINERD_SOCKET, HOST_LINK, POD_NETWORK, SERVICE_NETWORK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

GO_MINIMUM = (1, 26)
SOCKET_PATH_LIMIT = 107
"""`sun_path` holds 108 bytes with its closing zero."""
FREE_BYTES_WANTED = 8 * 1024**3

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "containerd": ("containerd", "ctr"),
    "runc": ("runc",),
    "iptables": ("iptables",),
    "conntrack": ("conntrack",),
    "ethtool": ("ethtool",),
    "socat": ("socat",),
    "iproute2": ("ip",),
    "util-linux": ("nsenter", "mount", "umount"),
    "kmod": ("modprobe",),
    "openssl": ("openssl",),
    "busybox-static": ("busybox",),
    "buildah": ("buildah",),
    "docker-registry": ("docker-registry",),
}
"""Debian package -> the commands we need of it."""
LIBRARIES: Mapping[str, str] = {
    "libcurl4": "libcurl.so.4",
    "libibverbs1": "libibverbs.so.1",
    "libnuma1": "libnuma.so.1",
}
"""Debian package -> the library of it that Mooncake's programs load; the tests of the window pool run these here."""
CNI_FOLDERS = (Path("/opt/cni/bin"), Path("/usr/lib/cni"), Path("/usr/libexec/cni"))
CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")
POLICY = Path("/usr/sbin/policy-rc.d")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

ELSEWHERE = (
    "Any other cluster will do: set KUBECONFIG (for instance `kind create cluster`, or a cluster you may use for "
    "tests) and run the same commands again; they will use it and never change how it is set up."
)


class Unfit(Exception):
    """This machine cannot run the cluster; the message says why and what to do."""


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
        missing_packages: Debian packages whose commands are not there.
        apt: Whether ``apt-get`` is there to install them.
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
    missing_packages: tuple[str, ...]
    apt: bool
    socket_path: str
    routes: tuple[str, ...]
    free_bytes: int


def faults(facts: Facts) -> list[str]:
    """List everything that keeps a machine from running the cluster, each with its way out."""
    if facts.platform != "linux":
        return [f"The operating system is {facts.platform}; the cluster needs Linux (namespaces, cgroups, overlayfs)."]
    found = []
    if facts.uid != 0:
        found.append(f"The user id is {facts.uid}; containers, network and mounts need root: run it with sudo -E.")
    if facts.go_needed and facts.go is None:
        found.append("There is no `go` on PATH; Kubernetes is built from Go modules: install Go 1.26 or newer.")
    elif facts.go_needed and facts.go is not None and facts.go < GO_MINIMUM:
        have, want = (".".join(map(str, version)) for version in (facts.go, GO_MINIMUM))
        found.append(f"Go is version {have}; Kubernetes needs {want} or newer.")
    if facts.missing_packages and not facts.apt:
        names = " ".join(facts.missing_packages)
        found.append(f"These programs are missing and there is no apt-get to install them: {names} (Debian's names).")
    lacking = sorted({"cpu", "cpuset", "memory", "pids"} - facts.controllers)
    if lacking:
        found.append(f"The kernel offers no cgroup controller {', '.join(lacking)}; the kubelet needs it.")
    if "overlay" not in facts.filesystems:
        found.append("The kernel has no overlay file system (`modprobe overlay`).")
    if len(facts.socket_path) > SOCKET_PATH_LIMIT:
        found.append(
            f"The path {facts.socket_path} has {len(facts.socket_path)} characters; a socket's may have "
            f"{SOCKET_PATH_LIMIT}: move the checkout to a shorter path."
        )
    found.extend(_overlaps(facts.routes))
    if facts.free_bytes < FREE_BYTES_WANTED:
        found.append(
            f"Only {facts.free_bytes / 1024**3:.1f} GiB are free for the state folder; images and pods take 8 GiB."
        )
    return found


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
        missing_packages=missing_packages(),
        apt=which("apt-get") is not None,
        socket_path=str(CONTAINERD_SOCKET) + ".ttrpc",
        routes=_routes() if linux and which("ip") else (),
        free_bytes=shutil.disk_usage(_existing(state)).free,
    )


def which(command: str) -> str | None:
    """Find a command on PATH or in the system's folders, which a user's PATH may lack."""
    return shutil.which(command) or shutil.which(command, path=_SYSTEM_PATH)


def command(name: str) -> str:
    """Return the absolute path of a command.

    Raises:
        Unfit: It is not installed.
    """
    path = which(name)
    if path is None:
        raise Unfit(f"The command {name!r} is not installed.\n{ELSEWHERE}")
    return path


def missing_packages(
    find: Callable[[str], str | None] = which, cni_folders: Sequence[Path] = CNI_FOLDERS
) -> tuple[str, ...]:
    """List the Debian packages of which a command is missing."""
    missing = [package for package, names in PACKAGES.items() if not all(find(name) for name in names)]
    if cni_folder(cni_folders) is None:
        missing.append("containernetworking-plugins")
    return tuple(sorted(missing))


def missing_libraries(loads: Callable[[str], bool] | None = None) -> tuple[str, ...]:
    """List the Debian packages of which a library is missing."""
    loads = loads or _loads
    return tuple(package for package, library in LIBRARIES.items() if not loads(library))


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def provide_libraries() -> bool:
    """Install the libraries of `LIBRARIES` that are missing; False if none was.

    Raises:
        Unfit: They cannot be installed; the message says what to do.
    """
    missing = missing_libraries()
    if not missing:
        return False
    names = " ".join(missing)
    wanted = f"The tests of the window pool run Mooncake, which needs the libraries of {names} (Debian's names)"
    if which("apt-get") is None:
        raise Unfit(f"{wanted}, and there is no apt-get to install them: install them as this system does it.")
    if os.geteuid() != 0:
        raise Unfit(f"{wanted}: `sudo apt-get install {names}`, or run the same command with sudo -E.")
    install(missing)
    if left := missing_libraries():
        raise Unfit(f"Installed, and yet libraries of these packages do not load: {' '.join(left)}")
    return True


def cni_folder(folders: Sequence[Path] = CNI_FOLDERS) -> Path | None:
    """Return the first folder that holds every network plugin we use."""
    for folder in folders:
        if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
            return folder
    return None


def install(packages: Sequence[str]) -> None:
    """Install Debian packages without letting any of them start a service.

    Raises:
        Unfit: apt-get failed; the message ends with its last lines.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = command("apt-get")
    with progress.reminders(f"installing {' '.join(packages)}"), no_services():
        for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            done = subprocess.run([apt, *arguments], env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-10:])
                raise Unfit(f"apt-get {' '.join(arguments)} failed with status {done.returncode}:\n{tail}")
    if left := sorted(set(missing_packages()) & set(packages)):
        raise Unfit(f"Installed, and yet commands of these packages are missing: {' '.join(left)}\n{ELSEWHERE}")


@contextmanager
def no_services() -> Iterator[None]:
    """Keep Debian's containerd and registry services down: `policy-rc.d` is the packages' own switch for that."""
    ours = not POLICY.exists()
    if ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            POLICY.unlink(missing_ok=True)


def go_version() -> tuple[int, int] | None:
    """Return the Go tool chain's version, None without one."""
    go = shutil.which("go")
    if go is None:
        return None
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    match = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else None


def require_go() -> None:
    """Raise Unfit unless a recent enough Go is there."""
    version = go_version()
    if version is None or version < GO_MINIMUM:
        have = "there is no `go` on PATH" if version is None else f"`go` is {version[0]}.{version[1]}"
        raise Unfit(f"Programs must be built from Go modules, and {have}: install Go 1.26 or newer.\n{ELSEWHERE}")


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


def _routes() -> tuple[str, ...]:
    done = subprocess.run([command("ip"), "-4", "route", "show"], capture_output=True, text=True, check=False)
    ours = (f"dev {HOST_LINK}", f"dev {BRIDGE_LINK}")
    rows = [line.split() for line in done.stdout.splitlines() if line and not any(link in line for link in ours)]
    return tuple(row[0] for row in rows if re.match(r"\d+\.\d+\.\d+\.\d+", row[0]))


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def processor() -> str:
    """Return the kernel's name of the processor (``x86_64``, ``aarch64``)."""
    return os.uname().machine

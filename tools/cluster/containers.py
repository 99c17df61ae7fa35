"""What containerd leaves on the machine: the pods' cgroup, its shims, and mounts below the state folder."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tools import program
from tools.cluster import machine
from tools.cluster.layout import CONTAINERD_SOCKET, NAMESPACE, RUN, STATE
from tools.program import Unfit

if TYPE_CHECKING:
    from collections.abc import Callable

OUTSIDE = tuple(
    Path(name)
    for name in (
        "/run/containerd",
        "/run/containerd/s",
        "/var/lib/cni",
        "/var/lib/cni/results",
        "/var/lib/kubelet",
        "/var/lib/kubelet/device-plugins",
        "/var/log/containers",
    )
)
"""Folders whose place no option changes."""
_NOTED = STATE / "made-folders"
_CGROUPS = Path("/sys/fs/cgroup")
_POLL_SECONDS = 0.05
_KILL_SECONDS = 15.0


def cgroups() -> list[Path]:
    """Return the pods' top cgroup in every hierarchy (one with cgroup v2)."""
    if machine.cgroup_v2():
        return [_CGROUPS / (f"{NAMESPACE}.slice" if machine.cgroup_driver() == "systemd" else NAMESPACE)]
    hierarchies = {folder.resolve() for folder in _CGROUPS.iterdir() if folder.is_dir()}
    return sorted(folder / NAMESPACE for folder in hierarchies if (folder / "cgroup.procs").exists())


def ensure_cgroups() -> None:
    """Make the cgroup that is the kubelet's root, with every controller switched on (cgroup v2 needs to be told)."""
    if machine.cgroup_v2():
        wanted = " ".join(f"+{name}" for name in ("cpu", "cpuset", "memory", "pids", "io", "hugetlb"))
        available = (_CGROUPS / "cgroup.controllers").read_text(encoding="ascii").split()
        enabled = " ".join(word for word in wanted.split() if word[1:] in available)
        _write(_CGROUPS / "cgroup.subtree_control", enabled)
    for folder in cgroups():
        folder.mkdir(exist_ok=True)
        if machine.cgroup_v2():
            _write(folder / "cgroup.subtree_control", enabled)
        for name in ("cpuset.cpus", "cpuset.mems"):  # v1 starts a cpuset empty, and an empty one takes no process
            file, parent = folder / name, folder.parent / name
            if file.exists() and parent.exists() and not file.read_text(encoding="ascii").strip():
                _write(file, parent.read_text(encoding="ascii").strip())


def kill(others: Callable[[], set[int]] = set) -> int:
    """Kill every container of ours and the shims that watch them.

    Containers are found by our cgroup, shims by our containerd's socket among their arguments: both are ours alone.

    Args:
        others: Lists further processes that must end, too.

    Returns:
        How many processes were killed.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + _KILL_SECONDS
    while pids := (_container_pids() | _shim_pids() | others()):
        for pid in pids:
            _kill(pid)
        killed |= pids
        if time.monotonic() > deadline:
            raise Unfit(f"Processes {sorted(pids)} of our containers do not end, not even on SIGKILL.")
        time.sleep(_POLL_SECONDS)
    return len(killed)


def count() -> int:
    """Return how many processes run in our pods."""
    return len(_container_pids())


def remove_cgroups() -> None:
    """Remove the pods' cgroups, leaves first; a cgroup is a folder that only rmdir can remove."""
    for top in cgroups():
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                Path(folder).rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise Unfit(f"The cgroup {folder} cannot be removed: {error.strerror}.") from error


def mounts(below: Path) -> list[str]:
    """List mount points below a folder, the deepest first."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    points = [_unescape(line.split()[4]) for line in text.splitlines()]
    return sorted((point for point in points if Path(point).is_relative_to(below)), reverse=True)


def unmount(below: Path) -> None:
    """Unmount everything below a folder.

    Raises:
        Unfit: A mount is left.
    """
    for _ in range(3):  # the same point may be mounted over more than once
        for point in mounts(below):
            program.run(["umount", "--lazy", point])
    if left := mounts(below):
        raise Unfit(f"Cannot unmount: {', '.join(left)}")


def note_folders() -> None:
    """Write down which of the folders that kubelet and containerd insist on are not there yet, for `remove_traces`."""
    if not _NOTED.exists():
        missing = [str(folder) for folder in OUTSIDE if not folder.exists()]
        _NOTED.write_text("".join(f"{name}\n" for name in missing), encoding="utf-8")


def remove_traces() -> None:
    """Remove what kubelet and containerd keep outside the state folder, other clusters' entries excepted."""
    for address in (RUN / "containerd").glob("io.containerd.runtime.v2.task/*/*/address"):
        Path(address.read_text(encoding="utf-8").removeprefix("unix://")).unlink(missing_ok=True)
    for link in _entries(Path("/var/log/containers")):
        if link.is_symlink() and link.readlink().is_relative_to(STATE):
            link.unlink()
    results = Path("/var/lib/cni/results")
    for result in results.glob(f"{NAMESPACE}-*-eth0"):
        sandbox = result.name.removeprefix(f"{NAMESPACE}-").removesuffix("-eth0")
        (results / f"cni-loopback-{sandbox}-lo").unlink(missing_ok=True)
        result.unlink()
    noted = _NOTED.read_text(encoding="utf-8").splitlines() if _NOTED.exists() else []
    for folder in sorted(map(Path, noted), reverse=True):
        for entry in _entries(folder):
            if entry.is_socket():
                entry.unlink()
        if folder.is_dir() and not _entries(folder):
            folder.rmdir()


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _container_pids() -> set[int]:
    result: set[int] = set()
    for top in cgroups():
        for file in top.rglob("cgroup.procs"):
            try:
                result |= {int(line) for line in file.read_text(encoding="ascii").split()}
            except OSError:  # the cgroup went away, or is a threaded one whose parent lists the processes
                continue
    return result - {0}


def _shim_pids() -> set[int]:
    result = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"containerd-shim" in words[0] and str(CONTAINERD_SOCKET).encode() in words:
            result.add(int(entry.name))
    return result


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="ascii")
    except OSError as error:
        raise Unfit(
            f"The kernel refuses {text!r} in {file}: {error.strerror}.\n"
            "In a container, run it with a cgroup namespace whose root holds no process, or use another cluster.\n"
            f"{machine.ELSEWHERE}"
        ) from error

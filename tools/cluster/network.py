"""The network namespace, its bridge, and the veth pair that puts the machine on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tools import program
from tools.cluster import machine
from tools.cluster.layout import (
    BRIDGE,
    BRIDGE_LINK,
    HOST_ADDRESS,
    HOST_LINK,
    NAMESPACE,
    NAMESPACE_FILE,
    NODE_ADDRESS,
    SERVICE_NETWORK,
    STATE,
)
from tools.program import Unfit

if TYPE_CHECKING:
    import subprocess

OWNER = Path("/run/epd-cluster")
"""Names the state folder of the cluster that is up: there is one network namespace on a machine, and many checkouts."""
SYSCTLS = (
    "net.ipv4.ip_forward=1",
    # Replies of a Service's pod to a neighbour on the same bridge must pass conntrack, or their source stays wrong.
    "net.bridge.bridge-nf-call-iptables=1",
    # A packet to a Service leaves by the bridge it came in: the kernel would advise the sender to skip us.
    "net.ipv4.conf.all.send_redirects=0",
    "net.ipv4.conf.default.send_redirects=0",
)


def owner() -> Path | None:
    """Return the state folder of the checkout whose cluster holds this machine's namespace."""
    try:
        return Path(OWNER.read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return None


def pids() -> set[int]:
    """Return every process inside the namespace, whoever started it (pods have namespaces of their own)."""
    if identity() is None:
        return set()
    return {int(word) for word in _ip("netns", "pids", NAMESPACE).stdout.split()}


def enter() -> list[str]:
    """Return the words that run a command inside the namespace (its pid stays the one that was started)."""
    return [program.path("nsenter"), f"--net={NAMESPACE_FILE}", "--"]


def identity() -> str | None:
    """Return the namespace's inode number as text, None when there is no namespace.

    The file can outlive a reboot on disks that keep /run; then it is no namespace any more.
    """
    try:
        status = NAMESPACE_FILE.stat()
    except FileNotFoundError:
        return None
    return str(status.st_ino) if status.st_dev == Path("/proc/self/ns/net").stat().st_dev else None


def ensure() -> None:
    """Make the network, or repair what is missing.

    Raises:
        Unfit: The kernel refuses one of the steps.
    """
    if identity() is None:
        remove()
        _ip("netns", "add", NAMESPACE)
    OWNER.write_text(f"{STATE}\n", encoding="utf-8")
    _bridge()
    _uplink()
    for setting in SYSCTLS:
        _sysctl(setting)
    _ip("route", "replace", SERVICE_NETWORK, "via", NODE_ADDRESS, "dev", HOST_LINK)


def remove() -> None:
    """Remove link, routes and namespace; with the namespace go the bridge, every rule and every port."""
    _ip("link", "del", HOST_LINK, check=False)
    if NAMESPACE_FILE.exists():
        _ip("netns", "del", NAMESPACE, check=False)
        NAMESPACE_FILE.unlink(missing_ok=True)
    OWNER.unlink(missing_ok=True)
    folder = NAMESPACE_FILE.parent
    if folder.is_dir() and not any(folder.iterdir()):  # `ip netns add` mounted the folder on itself, to share it
        program.run(["umount", str(folder)])


def _bridge() -> None:
    if not _there(BRIDGE, inside=True):
        _ip("link", "add", BRIDGE, "type", "bridge", inside=True)
    _ip("addr", "replace", f"{NODE_ADDRESS}/24", "dev", BRIDGE, inside=True)
    _ip("link", "set", BRIDGE, "up", inside=True)
    _ip("link", "set", "lo", "up", inside=True)


def _uplink() -> None:
    if not (_there(HOST_LINK, inside=False) and _there(BRIDGE_LINK, inside=True)):
        _ip("link", "del", HOST_LINK, check=False)
        _ip("link", "del", BRIDGE_LINK, check=False, inside=True)
        _ip("link", "add", HOST_LINK, "type", "veth", "peer", "name", BRIDGE_LINK, "netns", NAMESPACE)
    _ip("link", "set", BRIDGE_LINK, "master", BRIDGE, "up", inside=True)
    _ip("addr", "replace", f"{HOST_ADDRESS}/24", "dev", HOST_LINK)
    _ip("link", "set", HOST_LINK, "up")


def _there(link: str, *, inside: bool) -> bool:
    return _ip("link", "show", link, check=False, inside=inside).returncode == 0


def _sysctl(setting: str) -> None:
    if setting.startswith("net.bridge.") and not Path("/proc/sys/net/bridge").exists():
        program.run(["modprobe", "br_netfilter"])
    name, _, value = setting.partition("=")
    file = "/proc/sys/" + name.replace(".", "/")
    _run([*enter(), program.path("sh"), "-c", f"echo {value} > {file}"])


def _ip(*arguments: str, check: bool = True, inside: bool = False) -> subprocess.CompletedProcess[str]:
    prefix = enter() if inside else []
    return _run([*prefix, program.path("ip"), *arguments], check=check)


def _run(argv: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = program.run(argv)
    if check and done.returncode:
        raise Unfit(f"`{' '.join(argv)}` failed: {done.stderr.strip()}\n{machine.ELSEWHERE}")
    return done

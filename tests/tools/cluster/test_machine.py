"""What a machine is refused for, and in which words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.cluster import machine
from tools.cluster.machine import Facts

FIT = Facts(
    platform="linux",
    uid=0,
    controllers=frozenset({"cpu", "cpuset", "memory", "pids", "io"}),
    filesystems=frozenset({"ext4", "overlay"}),
    go=(1, 26),
    go_needed=True,
    socket_path="/srv/epd/.state/cluster/run/containerd.sock.ttrpc",
    routes=("192.168.1.0/24", "172.17.0.0/16", "10.255.0.0/16"),
    free_bytes=20 * 1024**3,
)


def test_a_fit_machine_has_no_fault() -> None:
    assert machine.faults(FIT) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"platform": "darwin"}, ["darwin", "needs Linux"]),
        ({"uid": 1000}, ["1000", "root", "sudo -E"]),
        ({"go": None}, ["`go`", "install Go 1.26"]),
        ({"go": (1, 25)}, ["1.25", "1.26"]),
        ({"controllers": frozenset({"cpu", "cpuset", "pids"})}, ["memory", "cgroup"]),
        ({"filesystems": frozenset({"ext4"})}, ["overlay"]),
        ({"socket_path": "/x" * 60}, ["120 characters", "107", "shorter path"]),
        ({"routes": ("10.244.0.0/24",)}, ["10.244.0.0/24", "VPN"]),
        ({"routes": ("10.0.0.0/8",)}, ["10.0.0.0/8", "10.96.0.0/12"]),
        ({"free_bytes": 1024**3}, ["1.0 GiB", "8 GiB"]),
    ],
)
def test_each_fault_names_what_is_and_the_way_out(change: dict[str, object], words: list[str]) -> None:
    text = "\n".join(machine.faults(replace(FIT, **change)))  # type: ignore[arg-type]
    assert all(word in text for word in words), text


def test_all_faults_come_at_once() -> None:
    faults = machine.faults(replace(FIT, uid=1000, go=None, free_bytes=0))
    assert len(faults) == 3


def test_go_is_not_asked_for_once_everything_is_built() -> None:
    assert machine.faults(replace(FIT, go=None, go_needed=False)) == []


ROUTES = """\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0102A8C0	0003	0	0	0	00000000	0	0	0
eth0	0002A8C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
tun0	0000600A	00000000	0001	0	0	0	0000F0FF	0	0	0
epd-host	00000A0A	00000000	0001	0	0	0	0000FFFF	0	0	0
"""


def test_routes_are_read_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.byteorder", "little")
    assert machine.routes(ROUTES) == ("192.168.2.0/24", "10.96.0.0/12")
    monkeypatch.setattr("sys.byteorder", "big")
    assert machine.routes("head\neth0 C0A80200 00000000 0001 0 0 0 FFFFFF00 0 0 0\n") == ("192.168.2.0/24",)


MOUNTS = """\
/dev/sda / ext4 rw 0 0
overlay /var/lib/docker/overlay2/x overlay rw 0 0
overlay /project overlay rw 0 0
/dev/sdb /project/disk ext4 rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("/srv/state", "overlayfs"), ("/project/state", "native"), ("/project/disk/state", "overlayfs")],
)
def test_an_overlay_is_not_laid_on_an_overlay(folder: str, expected: str) -> None:
    assert machine.snapshotter(Path(folder), MOUNTS) == expected

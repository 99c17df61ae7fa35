"""What a machine is refused for, and in which words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.cluster import cli, machine
from tools.cluster.machine import Facts

FIT = Facts(
    platform="linux",
    uid=0,
    controllers=frozenset({"cpu", "cpuset", "memory", "pids", "io"}),
    filesystems=frozenset({"ext4", "overlay"}),
    go=(1, 26),
    go_needed=True,
    missing_packages=("runc",),
    apt=True,
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
        ({"apt": False}, ["runc", "apt-get"]),
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
    found = machine.faults(replace(FIT, uid=1000, go=None, apt=False))
    assert len(found) == 3


def test_go_is_not_asked_for_once_everything_is_built() -> None:
    assert machine.faults(replace(FIT, go=None, go_needed=False)) == []


def test_a_missing_package_is_one_whose_command_is_missing(tmp_path: Path) -> None:
    for plugin in machine.CNI_PLUGINS:
        (tmp_path / plugin).touch()

    def find(name: str) -> str | None:
        return None if name in {"ctr", "socat"} else f"/usr/bin/{name}"

    assert machine.missing_packages(find, [tmp_path]) == ("containerd", "socat")


def test_network_plugins_must_lie_together(tmp_path: Path) -> None:
    (tmp_path / "bridge").touch()
    assert machine.missing_packages(lambda name: name, [tmp_path]) == ("containernetworking-plugins",)


def test_a_missing_command_is_named() -> None:
    with pytest.raises(machine.Unfit, match="no-such-command"):
        machine.command("no-such-command")


def test_services_of_packages_stay_down_only_while_installing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(machine, "POLICY", policy)
    with machine.no_services():
        assert policy.read_text().endswith("exit 101\n")
        assert policy.stat().st_mode & 0o111
    assert not policy.exists()
    policy.write_text("theirs")
    with machine.no_services():
        pass
    assert policy.read_text() == "theirs"


def test_a_missing_library_is_one_that_does_not_load() -> None:
    assert machine.missing_libraries(lambda name: name != "libnuma.so.1") == ("libnuma1",)
    assert machine.missing_libraries(lambda _: True) == ()
    assert machine._loads("libc.so.6")
    assert not machine._loads("libno-such-thing.so.7")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without the libraries, whose apt-get notes what it is asked for, and may install them."""
    installed = tmp_path / "installed"
    apt = tmp_path / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$@" >>{installed}\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(machine, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(machine, "_loads", lambda name: name != "libnuma.so.1" or installed.exists())
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return installed


def test_libraries_are_installed_once(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["packages"]) == 0
    assert bare.read_text().splitlines() == ["update", "install --yes --no-install-recommends libnuma1"]
    assert "installed" in capsys.readouterr().err
    bare.write_text("")
    assert cli.main(["packages"]) == 0
    assert not bare.read_text()


def test_libraries_that_cannot_be_installed(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is missing, what for, and the way out."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert cli.main(["packages"]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("window pool", "Mooncake", "sudo apt-get install libnuma1"))
    monkeypatch.setattr(machine, "which", lambda _: None)
    assert cli.main(["packages"]) == 2
    assert "no apt-get" in capsys.readouterr().err
    assert not bare.exists()


def test_libraries_that_do_not_load_although_they_are_installed(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_loads", lambda _: False)
    with pytest.raises(machine.Unfit, match="yet libraries of these packages do not load: libcurl4 libibverbs1"):
        machine.provide_libraries()


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

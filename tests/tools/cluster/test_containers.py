"""What is left outside the state folder, and that only ours is removed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.cluster import containers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine's folders, of which `theirs` was there before us."""
    folder = tmp_path / "outside"
    (folder / "theirs").mkdir(parents=True)
    monkeypatch.setattr(containers, "OUTSIDE", (folder / "theirs", folder / "kubelet", folder / "kubelet" / "plugins"))
    monkeypatch.setattr(containers, "_NOTED", tmp_path / "noted")
    monkeypatch.setattr(containers, "RUN", tmp_path / "run")
    return folder


def test_folders_we_caused_go_and_older_ones_stay(outside: Path) -> None:
    containers.note_folders()
    (outside / "kubelet" / "plugins").mkdir(parents=True)
    containers.remove_traces()
    assert [entry.name for entry in outside.iterdir()] == ["theirs"]


def test_a_second_up_does_not_take_our_folders_for_older_ones(outside: Path) -> None:
    containers.note_folders()
    (outside / "kubelet").mkdir()
    containers.note_folders()
    containers.remove_traces()
    assert not (outside / "kubelet").exists()


def test_a_folder_that_somebody_else_uses_by_now_stays(outside: Path) -> None:
    containers.note_folders()
    (outside / "kubelet").mkdir()
    (outside / "kubelet" / "config").write_text("theirs")
    containers.remove_traces()
    assert (outside / "kubelet" / "config").read_text() == "theirs"


def test_sockets_of_our_shims_go(outside: Path, tmp_path: Path) -> None:
    socket = tmp_path / "s" / "abc"
    socket.parent.mkdir()
    socket.touch()
    bundle = tmp_path / "run" / "containerd" / "io.containerd.runtime.v2.task" / "k8s.io" / "id"
    bundle.mkdir(parents=True)
    (bundle / "address").write_text(f"unix://{socket}")
    containers.remove_traces()
    assert not socket.exists()


def test_mounts_below_a_folder_come_deepest_first() -> None:
    points = containers.mounts(Path("/"))
    assert "/proc" in points
    assert points[-1] == "/"
    for outer, inner in ((a, b) for a in points for b in points if a != b and Path(b).is_relative_to(a)):
        assert points.index(inner) < points.index(outer)


def test_a_folder_with_a_similar_name_is_not_below() -> None:
    assert containers.mounts(Path("/pro")) == []

"""The order of starting and what repairs it, with small real processes in place of the components."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tools.cluster import components, containers, lifecycle, network, process
from tools.cluster.components import Component
from tools.program import Unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and uses pidfds")

SERVER = """
import pathlib, socket, sys, time
path, needed = sys.argv[1], sys.argv[2:]
assert all(pathlib.Path(name).exists() for name in needed), "started before what it needs"
pathlib.Path(path).unlink(missing_ok=True)
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
while True:
    server.accept()[0].close()
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Component]]:
    """Make components that listen on a socket named after them."""
    monkeypatch.setattr(components, "STATE", tmp_path)
    monkeypatch.setattr(components, "LOGS", tmp_path)
    monkeypatch.setattr(network, "enter", list)
    made: list[Component] = []

    def build(name: str, *needs: str, script: str = SERVER) -> Component:
        sockets = [str(tmp_path / need) for need in needs]
        argv = (sys.executable, "-c", script, str(tmp_path / name), *sockets)
        made.append(Component(name, argv, str(tmp_path / name), needs=needs))
        return made[-1]

    yield build
    for component in made:
        process.stop(component.pid_file, grace_seconds=0)


def pid(component: Component) -> int:
    record = process.read(component.pid_file)
    assert record is not None
    return record.pid


def test_each_starts_once_what_it_needs_serves(make: Callable[..., Component]) -> None:
    wanted = [make("c", "b"), make("b", "a"), make("a")]
    lifecycle.start(wanted, "1")
    assert all(component.running() for component in wanted)


def test_what_serves_is_left_alone(make: Callable[..., Component]) -> None:
    wanted = [make("a"), make("b", "a")]
    lifecycle.start(wanted, "1")
    before = [pid(component) for component in wanted]
    lifecycle.start(wanted, "1")
    assert [pid(component) for component in wanted] == before


def test_what_was_killed_is_started_again_alone(make: Callable[..., Component]) -> None:
    wanted = [make("a"), make("b", "a")]
    lifecycle.start(wanted, "1")
    kept, lost = map(pid, wanted)
    os.kill(lost, signal.SIGKILL)
    os.waitpid(lost, 0)
    lifecycle.start(wanted, "1")
    assert pid(wanted[0]) == kept
    assert pid(wanted[1]) != lost


def test_a_new_network_namespace_starts_everything_again(make: Callable[..., Component]) -> None:
    wanted = [make("a")]
    lifecycle.start(wanted, "1")
    before = pid(wanted[0])
    lifecycle.start(wanted, "2")
    assert pid(wanted[0]) != before


def test_one_that_hangs_is_started_again(make: Callable[..., Component], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "HUNG_SECONDS", 0.3)
    component = make("a")
    lifecycle.start([component], "1")
    hung = pid(component)
    os.unlink(component.health)  # noqa: PTH108 - it runs, and nobody can reach it any more
    lifecycle.start([component], "1")
    assert pid(component) != hung
    assert component.running()


def test_one_that_ends_is_reported_with_its_last_words(make: Callable[..., Component]) -> None:
    broken = make("a", script="raise SystemExit('no such key')")
    with pytest.raises(Unfit, match=r"(?s)a ended.*no such key"):
        lifecycle.start([broken], "1")


def test_one_that_never_serves_is_reported(make: Callable[..., Component], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "SERVE_SECONDS", 0.3)
    mute = make("a", script="import time; print('thinking', flush=True); time.sleep(60)")
    with pytest.raises(Unfit, match="a does not serve"):
        lifecycle.start([mute], "1")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[object]]:
    """A machine with a network namespace, and notes of what was done to it."""
    done: dict[str, list[object]] = {"killed": [], "unmounted": [], "removed": []}
    monkeypatch.setattr(lifecycle, "STATE", tmp_path / "ours")
    monkeypatch.setattr(network, "OWNER", tmp_path / "owner")
    monkeypatch.setattr(network, "identity", lambda: "4026532177")
    monkeypatch.setattr(network, "remove", lambda: done["removed"].append(True))
    monkeypatch.setattr(containers, "kill", lambda others: done["killed"].append(others) or 3)  # type: ignore[func-returns-value]
    monkeypatch.setattr(containers, "unmount", done["unmounted"].append)
    return done


def test_another_checkouts_running_cluster_is_left_alone(
    host: dict[str, list[object]], make: Callable[..., Component], tmp_path: Path
) -> None:
    lifecycle.start([make("a")], "1")
    (tmp_path / "owner").write_text(f"{tmp_path}\n")
    with pytest.raises(Unfit, match=rf"another checkout is up.*(?s:.*)KUBECONFIG={tmp_path}/kubeconfig"):
        lifecycle.take_over()
    assert host == {"killed": [], "unmounted": [], "removed": []}


def test_what_a_lost_state_folder_left_is_cleared(host: dict[str, list[object]], tmp_path: Path) -> None:
    lost = tmp_path / "gone"
    (tmp_path / "owner").write_text(f"{lost}\n")
    lifecycle.take_over()
    assert host == {"killed": [network.pids], "unmounted": [lost], "removed": [True]}


def test_half_a_state_folder_is_removed(host: dict[str, list[object]], tmp_path: Path) -> None:
    (tmp_path / "owner").write_text(f"{tmp_path / 'ours'}\n")
    (tmp_path / "ours" / "etcd").mkdir(parents=True)
    lifecycle.take_over()
    assert host["removed"] == [True]
    assert not (tmp_path / "ours").exists()


def test_our_own_cluster_is_not_cleared(host: dict[str, list[object]], tmp_path: Path) -> None:
    (tmp_path / "owner").write_text(f"{tmp_path / 'ours'}\n")
    (tmp_path / "ours" / "pids").mkdir(parents=True)
    (tmp_path / "ours" / "pids" / "etcd.json").write_text("{}")
    lifecycle.take_over()
    assert host == {"killed": [], "unmounted": [], "removed": []}
    assert (tmp_path / "ours" / "pids" / "etcd.json").exists()

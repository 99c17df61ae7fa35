"""The cache of built programs: its key, and that half a build is never used."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tools import progress
from tools.cluster import binaries, machine
from tools.cluster.layout import GO_MODULES, cache_folder
from tools.program import Unfit

GO = """#!/bin/sh
if [ "$1" = list ]; then
    echo "go: downloading example.org/a v1.0.0"
    echo "example.org/a:true:build ID mismatch"
    echo "example.org/b:false:"
    echo "thing:true:not installed but available in build cache"
    exit 0
fi
echo run >> "$LOG"
echo example.org/a
while [ "$1" != -o ]; do shift; done
for name in server kubectl; do echo "$name" > "$2$name"; done
exit "$STATUS"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> binaries.Module:
    """A module whose `go` is a script that writes two files and ends with $STATUS."""
    source = tmp_path / "go" / "thing"
    source.mkdir(parents=True)
    (source / "go.mod").write_text("module thing\n")
    (source / "go.sum").write_text("")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "go").write_text(GO)
    (tools / "go").chmod(0o755)
    monkeypatch.setattr(binaries, "GO_MODULES", tmp_path / "go")
    monkeypatch.setattr(machine, "go_version", lambda: machine.GO_MINIMUM)
    monkeypatch.setenv("PATH", f"{tools}:/bin:/usr/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOG", str(tmp_path / "runs"))
    monkeypatch.setenv("STATUS", "0")
    return binaries.Module("thing", ("-trimpath",), {"etcd": "server", "kubectl": "kubectl"})


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().splitlines())


def test_the_folder_is_named_by_module_and_key(module: binaries.Module, tmp_path: Path) -> None:
    folder = binaries.folder(module)
    assert folder.parent == tmp_path / "cache" / "epd" / "bin"
    assert re.fullmatch(r"thing-[0-9a-f]{16}", folder.name)


@pytest.mark.parametrize("file", ["go.mod", "go.sum"])
def test_the_key_depends_on_both_files(module: binaries.Module, file: str) -> None:
    before = binaries.key(module)
    path = module.source / file
    path.write_text(path.read_text() + "\n")
    assert binaries.key(module) != before


def test_the_key_depends_on_the_flags(module: binaries.Module) -> None:
    assert binaries.key(module) != binaries.key(replace(module, flags=("-trimpath", "-race")))


def test_text_that_moves_from_one_file_to_the_next_changes_the_key(module: binaries.Module) -> None:
    (module.source / "go.mod").write_text("ab")
    (module.source / "go.sum").write_text("c")
    before = binaries.key(module)
    (module.source / "go.mod").write_text("a")
    (module.source / "go.sum").write_text("bc")
    assert binaries.key(module) != before


def test_a_build_names_the_programs_and_is_done_once(module: binaries.Module, tmp_path: Path) -> None:
    folder = binaries.ensure(module)
    assert sorted(file.name for file in folder.iterdir()) == ["etcd", "kubectl"]
    assert (folder / "etcd").read_text() == "server\n"
    assert binaries.ensure(module) == folder
    assert runs(tmp_path) == 1


def test_a_build_says_how_many_of_the_packages_it_must_compile_are_done(
    module: binaries.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(progress.Step, "far", lambda _, text: lines.append(text))
    binaries.ensure(module)
    assert lines == ["1 modules downloaded", "1 of 1 packages"]


def test_a_failed_build_leaves_nothing_that_could_be_used(
    module: binaries.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATUS", "1")
    with pytest.raises(Unfit, match="status 1"):
        binaries.ensure(module)
    folder = binaries.folder(module)
    assert not [entry for entry in folder.parent.iterdir() if entry.is_dir()]
    monkeypatch.setenv("STATUS", "0")
    assert (binaries.ensure(module) / "kubectl").exists()


def test_two_at_once_build_once(module: binaries.Module, tmp_path: Path) -> None:
    threads = [threading.Thread(target=binaries.ensure, args=(module,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runs(tmp_path) == 1


def test_without_go_the_message_says_so(module: binaries.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "go_version", lambda: None)
    with pytest.raises(Unfit, match=r"(?s)no `go` on PATH.*KUBECONFIG"):
        binaries.ensure(module)


def test_an_unknown_program_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match="kube-score"):
        binaries.module_of("docker")


def test_every_program_comes_from_a_tool_of_its_module() -> None:
    for module in binaries.MODULES:
        text = (module.source / "go.mod").read_text()
        tools = re.findall(r"^(?:tool\s+|\t)([^\s(]+)$", text, re.MULTILINE)
        built = {re.sub(r"/v\d+$", "", tool).rpartition("/")[2] for tool in tools}
        assert built == set(module.programs.values())


def test_the_versions_in_the_flags_are_those_of_the_modules() -> None:
    kubernetes, addons = ((GO_MODULES / name / "go.mod").read_text() for name in ("kubernetes", "addons"))
    assert f"k8s.io/kubernetes {binaries.KUBERNETES_VERSION}" in kubernetes
    assert f"helm.sh/helm/v4 {binaries.HELM_VERSION}" in addons


def test_both_big_modules_share_one_client_go() -> None:
    match = [
        re.search(r"k8s.io/client-go (?:=> k8s.io/client-go )?(v0\.36\.\d+)", text)
        for text in ((GO_MODULES / name / "go.mod").read_text() for name in ("kubernetes", "addons"))
    ]
    assert match[0]
    assert match[1]
    assert match[0][1] == match[1][1]


def test_the_cache_folder_obeys_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "epd"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/epd")


def test_the_cluster_does_not_wait_for_what_only_tests_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [module.name for module in binaries.uncached()] == ["kubernetes", "addons"]
    assert [module.name for module in binaries.uncached(everything=True)] == ["kubernetes", "addons", "checks"]
    binaries.folder(binaries.MODULES[0]).mkdir(parents=True)
    assert [module.name for module in binaries.uncached()] == ["addons"]

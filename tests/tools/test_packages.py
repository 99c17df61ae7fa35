"""The table of what the machine must have, and how each entry is looked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools import packages
from tools.packages import CNI_PLUGINS, Job, Kind, Requirement

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def requirement(kind: Kind, name: str = "x", *paths: tuple[Path, ...]) -> Requirement:
    return Requirement(name, "package", "a test", frozenset({Job.TESTS}), kind, paths)


def test_every_entry_is_whole_and_there_is_one_of_each() -> None:
    for each in packages.REQUIREMENTS:
        assert each.name
        assert each.package
        assert each.purpose
        assert each.jobs
        assert bool(each.choices) == (each.kind is Kind.FILES)
    names = [each.name for each in packages.REQUIREMENTS]
    names += [*packages.PREREQUISITES, *packages.GO_PROGRAMS, *packages.PYTHON_PROGRAMS]
    assert len(names) == len(set(names))


def test_a_program_is_looked_for_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not requirement(Kind.PROGRAM, "some-program").present()
    (tmp_path / "some-program").write_text("")
    (tmp_path / "some-program").chmod(0o755)
    assert requirement(Kind.PROGRAM, "some-program").present()


def test_a_library_is_looked_for_by_the_loader() -> None:
    assert requirement(Kind.LIBRARY, "libc.so.6").present()
    assert not requirement(Kind.LIBRARY, "libno-such-thing.so.7").present()


def test_files_must_lie_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    for folder in (left, right):
        folder.mkdir()
    wanted = requirement(Kind.FILES, "x", *(tuple(folder / name for name in CNI_PLUGINS) for folder in (left, right)))
    monkeypatch.setattr(packages, "CNI_FOLDERS", (left, right))
    for plugin in CNI_PLUGINS[1:]:
        (left / plugin).touch()
    (right / CNI_PLUGINS[0]).touch()
    assert not wanted.present()
    assert packages.cni_folder() is None
    (left / CNI_PLUGINS[0]).touch()
    assert wanted.present()
    assert packages.cni_folder() == left


def test_a_module_is_looked_for_without_importing_it() -> None:
    assert requirement(Kind.MODULE, "antigravity").present()
    assert not requirement(Kind.MODULE, "no_such_module").present()


def test_packages_are_named_once_and_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "which", lambda name: None if name in {"ctr", "containerd", "buildah"} else name)
    lacking = packages.missing(Job.CLUSTER)
    names = [each.name for each in lacking if each.kind is Kind.PROGRAM]
    assert names == ["containerd", "ctr", "buildah"]
    assert packages.packages(each for each in lacking if each.name in names) == ("buildah", "containerd")


def test_a_job_asks_for_what_it_needs_only() -> None:
    assert {"debootstrap", "tar"} <= {each.name for each in packages.of(Job.BASE)}
    assert "debootstrap" not in {each.name for each in packages.of(Job.CLUSTER, Job.IMAGES)}
    assert set(packages.of(*Job)) == set(packages.REQUIREMENTS)

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from tools import packages
from tools.images import __main__ as command
from tools.images import build, registry
from tools.images.base import OF_THE_HOST, strip
from tools.images.build import Builder
from tools.images.program import run
from tools.images.recipe import ImageError, Options, recipe
from tools.images.store import DRIVERS, Store, cache_folder, open_store, provide

if TYPE_CHECKING:
    from tools.progress import Step

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Recorder(Store):
    """A store that remembers what it was asked to do; it holds what `images` names."""

    images: frozenset[str] = frozenset()
    files: list[str] = field(default_factory=list)
    built: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    pushed: list[tuple[str, str, bool, bool]] = field(default_factory=list)

    @override
    def has(self, image: str) -> bool:
        return image in self.images

    @override
    def tidy(self) -> None:
        self.built.append(("tidied", ()))

    @override
    def prune(self, name: str) -> None:
        self.built.append((f"pruned {name}", ()))

    @override
    def build(self, containerfile: Path, context: Path, image: str, *options: str, step: Step | None = None) -> None:
        self.built.append((image, options))
        self.files.append(containerfile.read_text())
        for option in options:
            if option.startswith("id=pip.conf,src="):
                assert Path(option.partition("src=")[2]).read_text().startswith("[global]\n")

    @override
    def push(self, image: str, target: str, *, tls: bool, fast: bool) -> str:
        self.pushed.append((image, target, tls, fast))
        return "sha256:new"


def builder(tmp_path: Path, images: set[str], options: Options | None = None) -> tuple[Builder, Recorder]:
    made = Builder(tmp_path, ROOT, options or Options(base="base:1"))
    store = Recorder(tmp_path, (), frozenset(images))
    made.__dict__["store"] = store
    return made, store


IMAGE = recipe(ROOT, "router", Options(base="base:1"))


def test_a_code_change_builds_the_top_layer_only(tmp_path: Path) -> None:
    made, store = builder(tmp_path, {IMAGE.local_dependencies})
    made.build(IMAGE)
    assert store.built == [(IMAGE.local, ())]
    assert store.files[0].startswith(f"FROM {IMAGE.local_dependencies}\nCOPY workers/epd_workers")
    assert store.files[0].count("FROM ") == 1


def test_dependencies_are_built_first_with_secrets_of_this_machine(tmp_path: Path) -> None:
    made, store = builder(tmp_path, set())
    made.build(IMAGE)
    assert [image for image, _ in store.built] == [
        "tidied",
        IMAGE.local_dependencies,
        "pruned router",
        IMAGE.local,
    ]
    options = store.built[1][1]
    assert options[:4] == ("--target", "dependencies", "--build-arg", "BASE=base:1")
    assert not any("--env" in option for option in options)
    assert not list(tmp_path.glob("secrets-*"))


def test_only_the_worker_is_told_of_torch(tmp_path: Path) -> None:
    options = Options(base="base:1", torch_index="https://example.org/cpu")
    made, store = builder(tmp_path, set(), options)
    for name in ("router", "worker"):
        made.build(recipe(ROOT, name, options))
    assert [
        image.partition(":")[0] for image, reported in store.built if "TORCH_INDEX=https://example.org/cpu" in reported
    ] == ["localhost/epd-worker-dependencies"]


def test_a_built_image_is_not_built_again(tmp_path: Path) -> None:
    made, store = builder(tmp_path, {IMAGE.local})
    made.build(IMAGE)
    assert store.built == []


@pytest.mark.parametrize("digest", ["sha256:old", "sha256:other"])
def test_an_image_in_the_registry_costs_one_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    made, store = builder(tmp_path, set())
    monkeypatch.setattr(registry.Registry, "digest", lambda *_: digest)
    assert made.push(IMAGE, registry.registry("example.org/me")) == f"example.org/me/epd-router:{IMAGE.tag}@{digest}"
    assert store.built == []
    assert store.pushed == []


@pytest.mark.parametrize(("repository", "tls", "fast"), [("example.org/me", True, False), ("localhost:1", False, True)])
def test_push(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: str, tls: bool, fast: bool) -> None:
    made, store = builder(tmp_path, {IMAGE.local})
    monkeypatch.setattr(registry.Registry, "digest", lambda *_: None)
    target = f"{repository}/epd-router:{IMAGE.tag}"
    assert made.push(IMAGE, registry.registry(repository)) == f"{target}@sha256:new"
    assert store.pushed == [(IMAGE.local, target, tls, fast)]


def test_a_registry_that_wants_credentials_is_not_pushed_to_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, store = builder(tmp_path, {IMAGE.local})
    monkeypatch.setattr(registry.Registry, "digest", lambda *_: "")
    first = made.push(IMAGE, registry.registry("example.org/me"))
    assert made.push(IMAGE, registry.registry("example.org/me")) == first
    assert len(store.pushed) == 1


def test_store_commands_stay_in_their_own_folder(tmp_path: Path) -> None:
    argv = Store(tmp_path, ("--storage-driver", "vfs")).argv("images")
    assert argv == [
        "buildah", "--root", f"{tmp_path}/store", "--runroot", f"{tmp_path}/run", "--storage-driver", "vfs", "images",
    ]  # fmt: skip


FAKE_BUILDAH = """#!/bin/sh
echo "$@" >>{log}
case "$*" in *{works}*) ;; *) echo "no such driver here" >&2; exit 1 ;; esac
"""


@pytest.mark.parametrize(
    ("works", "driver"),
    [("overlay images", DRIVERS[0]), ("fuse-overlayfs", DRIVERS[1]), ("vfs", DRIVERS[2])],
)
def test_the_first_driver_that_works_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: str, driver: tuple[str, ...]
) -> None:
    program, log = tmp_path / "bin" / "buildah", tmp_path / "log"
    program.parent.mkdir()
    program.write_text(FAKE_BUILDAH.format(log=log, works=f'"{works}"'))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    store = open_store(tmp_path / "images")
    assert store.driver == driver
    tried = log.read_text()
    assert open_store(tmp_path / "images") == store
    assert log.read_text() == tried


NEWEST_FIRST = """localhost/epd-router:3
localhost/epd-router-dependencies:c
localhost/epd-worker-dependencies:a
localhost/epd-router-dependencies:b
localhost/epd-router:1
localhost/epd-router-dependencies:a
"""
LISTING = """#!/bin/sh
case "$*" in
*images*) cat {listing} ;;
*) echo "$@" >>{log} ;;
esac
"""


def test_prune_keeps_two_sets_of_dependencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, log = tmp_path / "bin" / "buildah", tmp_path / "log"
    program.parent.mkdir()
    (tmp_path / "listing").write_text(NEWEST_FIRST)
    program.write_text(LISTING.format(log=log, listing=tmp_path / "listing"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    store = Store(tmp_path, DRIVERS[2])
    store.prune("worker")
    assert not log.exists()
    store.prune("router")
    removed = log.read_text().partition("rmi --force ")[2].split()
    assert removed == ["localhost/epd-router:3", "localhost/epd-router:1", "localhost/epd-router-dependencies:a"]


def test_no_driver_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "buildah"
    program.parent.mkdir()
    program.write_text(FAKE_BUILDAH.format(log="/dev/null", works="nothing"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with pytest.raises(ImageError, match="no such driver here"):
        open_store(tmp_path / "images")


def test_all_that_a_build_lacks_is_listed_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(packages, "which", lambda name: None if name in {"buildah", "debootstrap"} else name)
    with pytest.raises(ImageError) as caught:
        provide(base=True)
    text = str(caught.value)
    assert "needs root" in text
    assert "buildah (package buildah)" in text
    assert "debootstrap (package debootstrap)" in text
    assert "docker build" in text
    with pytest.raises(ImageError) as caught:
        provide(base=False)
    assert "debootstrap (" not in str(caught.value)


def test_cache_folder_ignores_a_relative_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_folder() == Path("/cache/epd/images")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert cache_folder() == Path.home() / ".cache/epd/images"


def test_a_failed_program_shows_its_last_lines_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier run\n")
    with pytest.raises(ImageError) as caught:
        run([sys.executable, "-c", "print('\\n'.join(map(str, range(99)))); raise SystemExit(3)"], log)
    text = str(caught.value)
    assert "ended with status 3" in text
    assert text.endswith("    98")
    assert "    69\n" in text
    assert "    68\n" not in text
    assert "earlier" not in text


def test_strip_leaves_nothing_of_the_machine(tmp_path: Path) -> None:
    for name in (*OF_THE_HOST, "var/cache/apt/archives/x.deb", "tmp/x", "etc/passwd", "usr/share/doc/x/copyright"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "stdin").symlink_to("/proc/self/fd/0")
    strip(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir())
    assert left == ["etc/passwd", "usr/share/doc/x/copyright"]
    assert (tmp_path / "tmp").is_dir()


def test_command_prints_pinned_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(registry.Registry, "digest", lambda *_: "sha256:1")
    monkeypatch.setenv("IMAGE_REPO", "example.org/me")
    assert command.main(["push", "--json", "operator", "router"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"operator", "router"}
    assert printed["router"].startswith("example.org/me/epd-router:")
    assert printed["router"].endswith("@sha256:1")


def test_command_reports_an_error_in_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "cache_folder", lambda: tmp_path)

    def fail(**_: object) -> None:
        raise ImageError("buildah is missing")

    monkeypatch.setattr(build, "provide", fail)
    assert command.main(["build", "router"]) == 1
    assert capsys.readouterr().err == "error: buildah is missing\n"

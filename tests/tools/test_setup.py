"""What set-up asks of a machine, what it installs, and what it says where it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e import demo, stack
from tools import apt, environment, packages, program, setup
from tools.cluster import access, binaries, machine
from tools.images import __main__ as images
from tools.packages import Job

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

APT = """#!/bin/sh
echo "$@" >>{log}
[ "$1" = install ] || exit 0
for name in "$@"; do [ "$name" != "${{FAILS:-}}" ] || {{ echo "E: Unable to locate package $name"; exit 100; }}; done
[ -z "${{NOTHING:-}}" ] || exit 0
for name in buildah debootstrap openssl; do ln -sf /bin/true {folder}/$name; done
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A machine that lacks three programs, and whose apt-get notes what it is asked for and brings them."""
    folder, log = tmp_path / "bin", tmp_path / "asked"
    folder.mkdir()
    (folder / "apt-get").write_text(APT.format(log=log, folder=folder))
    (folder / "apt-get").chmod(0o755)
    real = packages.which

    def which(name: str) -> str | None:
        if name in {"buildah", "debootstrap", "openssl", "apt-get"}:
            return str(folder / name) if (folder / name).exists() else None
        return real(name) or f"/usr/bin/{name}"

    monkeypatch.setattr(packages, "which", which)
    monkeypatch.setattr(packages, "loads", lambda _: True)
    monkeypatch.setattr(packages, "root", lambda: True)
    monkeypatch.setattr(packages.Requirement, "present", lambda each: which(each.name) is not None)
    monkeypatch.setattr(apt, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(machine, "faults", lambda _: [])
    for name in ("KUBECONFIG", "CI", "EPD_BASE_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    return lambda: log.read_text().splitlines() if log.exists() else []


def test_what_is_missing_is_installed_in_one_go(installed: Callable[[], list[str]]) -> None:
    assert setup.main(["test"]) == 0
    assert installed() == ["update", "install --yes --no-install-recommends buildah debootstrap openssl"]
    assert setup.main(["test"]) == 0
    assert len(installed()) == 2


def test_a_command_installs_what_it_needs_only(
    installed: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert setup.main(["environment"]) == 0
    assert installed() == []
    monkeypatch.setenv("EPD_BASE_IMAGE", "python:3.12-slim")
    assert setup.main(["demo"]) == 0
    assert installed()[-1] == "install --yes --no-install-recommends buildah openssl"


def test_whoever_brings_a_cluster_needs_none_here(
    installed: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "theirs"))
    monkeypatch.setattr(machine, "faults", lambda _: pytest.fail("the machine need not run a cluster"))
    assert setup.main(["demo"]) == 0
    assert installed()[-1] == "install --yes --no-install-recommends buildah debootstrap"


def test_who_may_not_install_is_told_of_everything_at_once(
    installed: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packages, "root", lambda: False)
    monkeypatch.setattr(machine, "faults", lambda _: ["The kernel is odd.", "Go is old."])
    assert setup.main(["demo"]) == 2
    text = capsys.readouterr().err
    assert "`sudo apt-get install buildah debootstrap openssl`" in text
    assert "buildah (package buildah): builds images" in text
    assert "The kernel is odd." in text
    assert "Go is old." in text
    assert "KUBECONFIG" in text
    assert installed() == []


def test_without_apt_get_everything_is_listed(
    installed: Callable[[], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin" / "apt-get").unlink()
    assert setup.main(["demo"]) == 2
    text = capsys.readouterr().err
    assert "no apt-get" in text
    assert "buildah debootstrap openssl" in text
    assert installed() == []


def test_a_bad_kubeconfig_is_said_with_the_rest(
    installed: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.setattr(packages, "root", lambda: False)
    assert setup.main(["demo"]) == 2
    text = capsys.readouterr().err
    assert "KUBECONFIG=/nowhere" in text
    assert "buildah" in text
    assert installed() == []


def test_where_no_cluster_can_run_the_other_tests_do_and_ci_does_not(
    installed: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "faults", lambda _: ["The kernel has no overlay file system."])
    monkeypatch.setenv("CI", "true")
    assert setup.main(["test"]) == 2
    assert installed() == []
    monkeypatch.delenv("CI")
    assert setup.main(["test"]) == 0
    assert installed()[-1] == "install --yes --no-install-recommends debootstrap openssl"
    text = capsys.readouterr().err
    assert "the tests on a cluster are skipped" in text
    assert "no overlay" in text


def test_go_is_asked_for_with_the_cluster_that_is_brought(
    installed: Callable[[], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "theirs").write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "theirs"))
    monkeypatch.setattr(machine, "go_version", lambda: None)
    monkeypatch.setattr(access, "built", lambda name: None if name == "helm" else tmp_path)
    assert setup.main(["demo"]) == 2
    assert "Without it, put helm on PATH." in capsys.readouterr().err
    assert installed() == []


@pytest.mark.parametrize(("command", "everything"), [("demo", False), ("test", True)])
def test_go_is_needed_as_long_as_a_program_must_be_built(
    installed: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, command: str, everything: bool
) -> None:
    asked: list[bool] = []

    def uncached(*, everything: bool) -> list[binaries.Module]:
        asked.append(everything)
        return []

    monkeypatch.setattr(binaries, "uncached", uncached)
    assert setup.main([command]) == 0
    assert asked == [everything]
    assert installed()


def test_a_package_that_cannot_be_had(
    installed: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAILS", "buildah")
    assert setup.main(["demo"]) == 2
    text = capsys.readouterr().err
    assert "failed with status 100" in text
    assert "Unable to locate package buildah" in text
    monkeypatch.delenv("FAILS")
    monkeypatch.setenv("NOTHING", "1")
    assert setup.main(["demo"]) == 2
    assert "Installed, and yet this machine does not find: openssl (package openssl)" in capsys.readouterr().err
    assert len(installed()) == 4


def test_services_of_packages_stay_down_only_while_installing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(apt, "POLICY", policy)
    with apt.no_services():
        assert policy.read_text().endswith("exit 101\n")
        assert policy.stat().st_mode & 0o111
    assert not policy.exists()
    policy.write_text("theirs")
    with apt.no_services():
        pass
    assert policy.read_text() == "theirs"


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.main(["list"]) == 0
    text = capsys.readouterr().out
    assert all(each.name in text and each.package in text for each in packages.REQUIREMENTS)
    assert all(name in text for name in packages.PREREQUISITES)


def test_a_reader_of_the_table_may_stop_early() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tools.setup", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()
        assert listing.stderr.read() == b""
    assert listing.returncode == 0


@pytest.mark.parametrize("module", ["tools.setup", "tools.environment"])
def test_it_needs_nothing_but_the_standard_library(module: str) -> None:
    """It runs before there is an environment."""
    argv = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(Path.cwd())!r}); import {module}"]
    done = program.run(argv)
    assert done.returncode == 0, done.stderr


def test_every_job_is_somebodys() -> None:
    assert frozenset().union(*setup.COMMANDS.values()) == frozenset(Job)


@pytest.mark.parametrize(
    ("place", "name", "main", "arguments"),
    [
        (setup, "provide", setup.main, ["demo"]),
        (environment, "make", environment.main, ["folder"]),
        (images, "recipe", images.main, ["build"]),
        (stack, "prepare", stack.main, []),
        (demo, "run", demo.main, []),
    ],
)
def test_who_interrupts_gets_a_line_and_no_traceback(
    place: ModuleType,
    name: str,
    main: Callable[..., int],
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, name, interrupted)
    monkeypatch.setattr(access, "unavailable", lambda: None)
    monkeypatch.setattr("sys.argv", ["demo"])
    assert main(*[arguments] if arguments else []) == 130
    assert capsys.readouterr().err == "interrupted; run the same command again to go on\n"

"""Set-up on a machine that has nothing but what the README asks for: Python, Go, make, and root."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tools import bare
from tools import packages
from tools.cluster.layout import HOST_LINK
from tools.packages import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.tools.bare import Machine

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="makes a Debian root, which needs Linux"),
    pytest.mark.skipif(os.geteuid() != 0, reason="makes a Debian root and enters it, which needs root"),
]

SOON_SECONDS = 10.0
DEMO = tuple(job for job in Job if job is not Job.TESTS)
ASK = """
import json
from tools import packages
print(json.dumps([[each.name, each.package] for each in packages.REQUIREMENTS if not each.present()]))
"""
PLACES = """
import json, os
from tools import packages
programs = [each.name for each in packages.REQUIREMENTS if each.kind is packages.Kind.PROGRAM]
print(json.dumps({name: os.path.realpath(packages.which(name)) for name in programs}))
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = bare.machine(tmp_path)
    yield made
    shutil.rmtree(made.root)  # pytest would keep a gigabyte of each of the last three runs


def lacking(machine: Machine, *jobs: Job) -> list[tuple[str, str]]:
    """What of the table, or of what some jobs need, the machine does not have, each with its package."""
    wanted = {each.name for each in packages.of(*(jobs or Job))}
    asked = machine.run("python3", "-c", ASK)
    assert asked.returncode == 0, asked.stderr
    return [(name, package) for name, package in json.loads(asked.stdout) if name in wanted]


def set_up(machine: Machine, command: str) -> str:
    done = machine.run("python3", "-m", "tools.setup", command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.mark.timeout(600)
def test_set_up_leaves_nothing_missing_on_a_bare_machine(machine: Machine) -> None:
    absent = lacking(machine)
    brought = {package for _, package in absent}
    assert {"debootstrap", "buildah", "containerd", "python3-venv", "ca-certificates", "libnuma1"} <= brought

    # Who may not install is told of everything, at once and soon.
    began = time.monotonic()
    refused = machine.run("python3", "-m", "tools.setup", "test", user=65534, CI="true")
    assert time.monotonic() - began < SOON_SECONDS
    assert refused.returncode == 2
    assert all(name in refused.stderr and f"(package {package})" in refused.stderr for name, package in absent)
    assert "sudo apt-get install" in refused.stderr

    # The demo's set-up brings what the demo needs.
    set_up(machine, "demo")
    assert lacking(machine, *DEMO) == []

    # Every package that the table names and caches are removed again; the tests' set-up brings everything back.
    removed = machine.run("apt-get", "purge", "--yes", *sorted(brought - {each for _, each in lacking(machine)}))
    assert removed.returncode == 0, removed.stderr
    assert len(lacking(machine)) == len(absent)
    set_up(machine, "test")
    assert lacking(machine) == []

    # The switch that kept the packages' services down is gone.
    assert not (machine.root / "usr/sbin/policy-rc.d").exists()

    # A second time there is nothing to do.
    began = time.monotonic()
    assert "installing" not in set_up(machine, "test")
    assert time.monotonic() - began < SOON_SECONDS

    assert misplaced(machine) == {}, "the table names the wrong package"


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.skipif(Path("/sys/class/net", HOST_LINK).exists(), reason="a cluster is up: one machine can run one")
def test_the_demo_runs_on_a_bare_machine(machine: Machine) -> None:
    """`make demo`, from nothing: environment, Kubernetes, cluster, images, and two right answers.

    What a chroot leaves out: the kernel and its modules, cgroups, /dev and the network are this machine's, so what a
    bare kernel lacks is not seen here, and whatever Go or Python would fetch is fetched the way this machine does.
    """
    done = machine.run("bash", "-c", "make demo; status=$?; make down; exit $status")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert "A red circle in the middle.' (right)" in done.stdout
    assert "In the barn.' (right)" in done.stdout
    assert lacking(machine, *DEMO) == []


def misplaced(machine: Machine) -> dict[str, set[str]]:
    """Requirements of which another package is the one that brings them, by dpkg's own word."""
    actual: dict[str, str] = json.loads(machine.run("python3", "-c", PLACES).stdout)
    patterns = {
        name: [path, path.removeprefix("/usr")]  # where /bin is a link, dpkg knows a file by its package's own name
        for name, path in actual.items()
    }
    patterns |= {each.name: [f"*/{each.name}"] for each in packages.LIBRARIES}
    plugins = next(each for each in packages.REQUIREMENTS if each.package == "containernetworking-plugins")
    patterns[plugins.name] = [str(path) for paths in plugins.choices for path in paths]
    owners = machine.run("dpkg", "-S", *(pattern for each in patterns.values() for pattern in each)).stdout
    lines = [line.partition(": ") for line in owners.splitlines() if not line.startswith("diversion")]
    wrong = {}
    for each in packages.REQUIREMENTS:
        if each.name in patterns:
            brought = {
                package.partition(":")[0]
                for package, _, path in lines
                if any(fnmatch(path, pattern) for pattern in patterns[each.name])
            }
            if brought != {each.package}:
                wrong[each.name] = brought
    return wrong

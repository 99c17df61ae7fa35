"""Debian packages, installed in one go and without letting any of them start a service."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tools import packages, program, progress, tally
from tools.program import Unfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tools.packages import Requirement

POLICY = Path("/usr/sbin/policy-rc.d")
_SHOWN = 10


def obstacle(lacking: Sequence[Requirement]) -> str | None:
    """Say why some requirements cannot be installed here, each with its package, and the way out; None if they can."""
    if not lacking or (packages.root() and packages.which("apt-get")):
        return None
    names = " ".join(packages.packages(lacking))
    listed = "\n".join(f"    {each.name} (package {each.package}): {each.purpose}" for each in lacking)
    if packages.which("apt-get"):
        way = f"installing needs root: `sudo apt-get install {names}`, or run the same command with sudo -E."
    else:
        way = f"there is no apt-get: install them as this system does it (Debian's names: {names})."
    return f"These are missing, and {way}\n{listed}"


def provide(lacking: Sequence[Requirement]) -> None:
    """Install what is missing; nothing is done where nothing is.

    Args:
        lacking: What `packages.missing` found.

    Raises:
        Unfit: It cannot be installed, or is not there although it was; the message says what to do.
    """
    if not lacking:
        return
    if (why_not := obstacle(lacking)) is not None:
        raise Unfit(why_not)
    install(packages.packages(lacking))
    if left := [each for each in lacking if not each.present()]:
        listed = ", ".join(f"{each.name} (package {each.package})" for each in left)
        raise Unfit(f"Installed, and yet this machine does not find: {listed}")


def install(names: Sequence[str]) -> None:
    """Install Debian packages by name.

    Raises:
        Unfit: apt-get failed; the message ends with its last lines.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    counted = tally.Apt()
    with progress.step(f"installing {' '.join(names)}") as step, no_services():

        def read(line: str) -> None:
            if far := counted.read(line):
                step.far(far)

        for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *names]):
            done = program.watch(["apt-get", *arguments], read, env=environment)
            if done.status:
                tail = "\n".join(done.tail[-_SHOWN:])
                raise Unfit(f"apt-get {' '.join(arguments)} failed with status {done.status}:\n{tail}")


@contextmanager
def no_services() -> Iterator[None]:
    """Keep Debian's containerd and registry services down: `policy-rc.d` is the packages' own switch for that."""
    ours = not POLICY.exists()
    if ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            POLICY.unlink(missing_ok=True)

"""Set-up: looks at the machine and installs what it lacks, in one go and before anything that takes long.

`python3 -m tools.setup demo` is the first step of `make demo`, and so on. It runs on the machine's own Python, before
there is an environment, so it uses the standard library only.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from tools import apt, packages, progress
from tools.cluster import access, binaries, machine
from tools.cluster.layout import STATE
from tools.images.store import OWN_IMAGES
from tools.packages import Job
from tools.program import Unfit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNFIT = 2
NO_CLUSTER = frozenset({Job.ENVIRONMENT, Job.TESTS})
COMMANDS: dict[str, frozenset[Job]] = {
    "demo": frozenset(Job) - {Job.TESTS},
    "test": frozenset(Job),
    "bench": NO_CLUSTER,
    "environment": frozenset({Job.ENVIRONMENT}),
}
"""What the commands of the Makefile need."""
_DESCRIPTION = """\
Install what this machine lacks of the programs and libraries that a command needs (Debian and Ubuntu, as root).
Elsewhere, list all of it at once, each with its Debian package. Everything else that would end the command later
(no Go, no root, a kernel without overlayfs, an address range that is taken) is said now, too.
"""
_EPILOG = "exit status: 0 nothing is missing (any more); 2 something is, and cannot be installed here."


def wanted(command: str, environment: Mapping[str, str], *, brought: bool) -> frozenset[Job]:
    """Return what a command needs on this machine.

    Args:
        command: One of `COMMANDS`.
        environment: ``EPD_BASE_IMAGE`` makes a base image unnecessary.
        brought: Whether the user brings a cluster.
    """
    spared = {Job.CLUSTER} if brought else set()
    if environment.get("EPD_BASE_IMAGE"):
        spared.add(Job.BASE)
    return COMMANDS[command] - spared


def faults(jobs: frozenset[Job], *, brought: bool, everything: bool) -> list[str]:
    """List all that keeps this machine from doing some jobs and that no package mends, each with its way out.

    Args:
        jobs: What is to be done.
        brought: Whether the user brings a cluster; then kubectl and Helm may come from PATH.
        everything: Whether programs that only tests use are needed, too.
    """
    result = []
    if (obstacle := apt.obstacle(packages.missing(*jobs))) is not None:
        result.append(obstacle)
    if Job.CLUSTER in jobs:
        facts = machine.survey(go_needed=bool(binaries.uncached(everything=everything)), state=STATE)
        result += machine.faults(facts)
    elif brought and jobs - NO_CLUSTER and (fault := machine.go_fault(machine.go_version())):
        tools = ("kubectl", "helm", "kubeconform", "kube-score") if everything else ("kubectl", "helm")
        absent = [name for name in tools if not access.built(name)]
        result += [f"{fault} Without it, put {', '.join(absent)} on PATH."] if absent else []
    if Job.IMAGES in jobs and not packages.root() and Job.CLUSTER not in jobs:
        result.append("Building images needs root (buildah's chroot isolation, debootstrap): run it with sudo -E.")
    return result


def provide(command: str) -> None:
    """Install what a command needs and this machine lacks.

    A machine that can run no cluster can run `test` all the same, unless ``CI`` is set: the tests on a cluster are
    skipped then, and why is said here.

    Raises:
        Unfit: It cannot be installed, or the machine is unfit otherwise; the message lists everything at once.
    """
    brought, result = False, []
    try:
        brought = access.given() is not None
    except Unfit as error:
        result.append(str(error))
    jobs = wanted(command, os.environ, brought=brought)
    result += faults(jobs, brought=brought, everything=command == "test")
    if result:
        listed = "\n".join(["", *(f"  - {each}" for each in result), *_ways_out(jobs)])
        rest = jobs & NO_CLUSTER
        if command != "test" or os.environ.get("CI") or faults(rest, brought=False, everything=False):
            raise Unfit(f"This machine lacks what `{command}` needs:{listed}")
        progress.say(f"the tests on a cluster are skipped, because this machine cannot run one:{listed}", "yellow")
        jobs = rest
    apt.provide(packages.missing(*jobs))


def _ways_out(jobs: frozenset[Job]) -> list[str]:
    if Job.CLUSTER in jobs:
        return [machine.ELSEWHERE]
    return [OWN_IMAGES] if Job.IMAGES in jobs else []


def table() -> str:
    """Return the table of everything that is needed, for people."""
    rows = [("NAME", "DEBIAN PACKAGE", "WHAT FOR")]
    rows += [(each.name, each.package, each.purpose) for each in packages.REQUIREMENTS]
    rows += [(name, "-", purpose) for name, purpose in packages.PREREQUISITES.items()]
    return "\n".join(f"{name:<36}{package:<28}{purpose}" for name, package, purpose in rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run set-up and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.setup",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=[*COMMANDS, "list"], help="what is to be run; `list` prints the table")
    command: str = parser.parse_args(argv).command
    if command == "list":
        try:
            print(table(), flush=True)
        except BrokenPipeError:  # the reader has seen enough, as with `list | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    try:
        provide(command)
    except Unfit as error:
        print(progress.coloured(str(error), "red"), file=sys.stderr)
        return UNFIT
    except KeyboardInterrupt:
        return progress.interrupted()
    return 0


if __name__ == "__main__":
    sys.exit(main())

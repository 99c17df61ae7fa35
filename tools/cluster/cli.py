"""The command line: ``python -m tools.cluster up|down|status|load|logs|build``."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tools import program, progress
from tools.cluster import access, binaries, kwok, lifecycle, network, registry, status
from tools.cluster.layout import AUDIT_LOG, CONTEXT, KUBECONFIG, LOGS, STATE, cache_folder
from tools.program import Unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

UNFIT = 2
_DESCRIPTION = f"""\
A real Kubernetes {binaries.KUBERNETES_VERSION} on this machine: API server, controllers, kubelet, containers, DNS,
an image registry, and fake nodes for scale. Built from Go modules the first time (about ten minutes on two
cores), up in seconds afterwards. Needs Linux, root, and Go for the first time.
"""
_EPILOG = f"""\
examples:
  python -m tools.cluster up                       start it, or repair what a crash or a reboot left
  export KUBECONFIG={KUBECONFIG}
  python -m tools.cluster load localhost/app:dev   push an image; prints the name to use in pods
  python -m tools.cluster logs kube-apiserver -f   follow a component's log
  python -m tools.cluster down                     end it and remove everything but the caches

Everything lives in a network namespace of its own: this machine's network gains one link and one route, and
nothing of the cluster can reach beyond this machine. State: {STATE}
Caches: {cache_folder()} (safe to delete; costs a rebuild)

With KUBECONFIG set to another cluster's file, `up` checks that cluster and starts nothing, and `down` refuses.
exit status: 0 done; 1 the cluster is not (fully) up, for status; 2 this machine or request cannot be served.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m tools.cluster",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start the cluster, or repair it; does nothing when it serves")
    up.add_argument("--kwok", type=int, default=0, metavar="N", help="also make sure of N fake nodes (1 to 1000)")
    up.set_defaults(run=_up)
    down = commands.add_parser("down", help="end the cluster and remove all it made, except the caches")
    down.set_defaults(run=_down)
    state = commands.add_parser("status", help="show every component; exit status 1 unless all serve")
    state.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    state.set_defaults(run=_status)
    load = commands.add_parser("load", help="push an image to the local registry")
    load.add_argument("image", metavar="IMAGE", help="name in buildah's storage, or an archive file")
    load.set_defaults(run=_load)
    logs = commands.add_parser("logs", help="print a component's log")
    logs.add_argument("component", metavar="COMPONENT", help="as `status` names it, or `audit`")
    logs.add_argument("-f", "--follow", action="store_true", help="go on printing what comes")
    logs.add_argument("-n", "--lines", type=int, default=200, metavar="N", help="last N lines (default 200)")
    logs.set_defaults(run=_logs)
    build = commands.add_parser("build", help="check the machine, install packages, build programs; start nothing")
    build.set_defaults(run=_build)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    arguments = parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except (Unfit, ValueError) as error:
        print(progress.coloured(str(error), "red"), file=sys.stderr)
        return UNFIT
    except BrokenPipeError:  # the reader has seen enough, as with `status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return progress.interrupted()


def _up(arguments: argparse.Namespace) -> int:
    if (path := access.given()) is not None:
        _check_given(path)
    else:
        with _alone():
            lifecycle.up()
    if arguments.kwok:
        names = kwok.add_nodes(arguments.kwok)
        progress.say(f"{len(names)} fake nodes are Ready")
    return 0


def _check_given(path: Path) -> None:
    command = [str(access.tool("kubectl")), f"--kubeconfig={path}", "--request-timeout=10s", "get", "--raw=/readyz"]
    done = program.run(command)
    if done.returncode:
        raise Unfit(
            f"KUBECONFIG={path}: that cluster does not answer: {done.stderr.strip()}\n"
            "Unset KUBECONFIG to use the local cluster."
        )
    progress.say(f"using the cluster of KUBECONFIG={path}; nothing is started here", "green")


def _down(_: argparse.Namespace) -> int:
    if (path := access.given()) is not None:
        raise Unfit(
            f"KUBECONFIG={path} is not the local cluster's: `down` never touches another cluster.\n"
            f"To end the local one ({CONTEXT}): env -u KUBECONFIG python -m tools.cluster down"
        )
    if sys.platform != "linux" or not STATE.exists():
        elsewhere = network.owner()
        hint = f" (but another checkout's is: {elsewhere})" if elsewhere else ""
        progress.say(f"the local cluster is not up: nothing to do{hint}")
        return 0
    if os.geteuid() != 0:
        raise Unfit("`down` needs root, as `up` did: run it with sudo -E.")
    with _alone():
        lifecycle.down()
    return 0


def _status(arguments: argparse.Namespace) -> int:
    if (path := access.given()) is not None:
        _check_given(path)
        if arguments.output == "json":
            print(json.dumps({"kubeconfig": str(path), "up": True, "components": []}))
        return 0
    document = status.report()
    print(json.dumps(document, indent=2) if arguments.output == "json" else status.text(document), flush=True)
    return 0 if document["up"] else 1


def _load(arguments: argparse.Namespace) -> int:
    if (path := access.given()) is not None:
        raise Unfit(
            f"KUBECONFIG={path}: `load` pushes to the local cluster's registry only. "
            "Push the image to a registry that cluster pulls from (`kind load docker-image` for kind)."
        )
    print(registry.load(arguments.image))
    return 0


def _logs(arguments: argparse.Namespace) -> int:
    known = {file.stem: file for file in sorted(LOGS.glob("*.log"))}
    if AUDIT_LOG.exists():
        known["audit"] = AUDIT_LOG
    if arguments.component not in known:
        listed = ", ".join(known) or "none, the cluster was never up"
        raise Unfit(f"There is no log of {arguments.component!r}; there are: {listed}.")
    follow = ["-F"] if arguments.follow else []
    command = ["tail", *follow, "-n", str(arguments.lines), str(known[arguments.component])]
    return program.show(command).returncode


def _build(_: argparse.Namespace) -> int:
    lifecycle.prepare(everything=True)
    progress.say("everything is installed and built", "green")
    return 0


@contextmanager
def _alone() -> Iterator[None]:
    """Let one `up` or `down` work at a time; a second one waits."""
    lock = cache_folder() / "cluster.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another up or down is at work; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

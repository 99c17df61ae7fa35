"""Entry point of `epd`: the argument parser, and one function per command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from epd_operator import __version__

# Each command imports what it needs: `epd version` must not pay for a Kubernetes client.
# ruff: noqa: PLC0415

Command = Callable[[argparse.Namespace], int]

DESCRIPTION: Final = """\
DeepSeek-V4.1 on Kubernetes as vision-encode, prefill and decode pods behind one router.

  epd status demo -n llm --watch     look at one deployment until you press Ctrl-C
  epd status -A -o json              everything, for scripts
  epd crd | kubectl apply --server-side -f -
  epd run                            the operator itself; the chart does this for you
"""

RUN: Final = """\
Run the operator. It reads the service account inside a pod, and the kubeconfig anywhere else.

Two processes may run at once: one leads (a Lease decides), the other stands by and takes over within seconds.

environment:
  EPD_WATCH_NAMESPACE  namespaces to watch, separated by commas; empty: all
  EPD_ROUTER_IMAGE     default image of the router pods
  EPD_WORKER_IMAGE     default image of the Reference engine's pods
  EPD_WORKERS          reconciliations at once (32)
  EPD_METRICS_PORT     Prometheus metrics (8080)
  EPD_PROBES_PORT      /healthz and /readyz (8090)
  EPD_LEASE_NAME       name of the Lease (epd-operator)
  POD_NAME             part of the lease identity; the host's name when unset
  POD_NAMESPACE        namespace of the Lease (epd-system)
"""

STATUS: Final = """\
Show what the operator last wrote into status, and the pods behind it.

exit status: 0 every shown deployment is Ready, 1 one is not, 2 the cluster or the deployment was not found
"""


def parser() -> argparse.ArgumentParser:
    """The complete command line."""
    root = argparse.ArgumentParser(
        prog="epd", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, run: Command, short: str, long: str | None = None) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name, help=short, description=long or short, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        added.set_defaults(run=run)
        return added

    status = command("status", _status, "show deployments, their roles, conditions and pods", STATUS)
    status.add_argument("name", nargs="?", metavar="NAME", help="one deployment; all of the namespace when left out")
    where = status.add_mutually_exclusive_group()
    where.add_argument("-n", "--namespace", help="namespace (default: the kubeconfig context's)")
    where.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces")
    status.add_argument("-w", "--watch", action="store_true", help="keep looking until Ctrl-C")
    status.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form (default: text)")
    for target in (status, operator := command("run", _run, "run the operator", RUN)):
        target.add_argument("--kubeconfig", metavar="FILE", help="instead of $KUBECONFIG or ~/.kube/config")
        target.add_argument("--context", help="context of the kubeconfig (default: its current one)")
    operator.add_argument(
        "--log-format",
        choices=("auto", "json", "text"),
        default="auto",
        help="auto: text on a terminal, else JSON (default: auto)",
    )
    operator.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="(default: info)"
    )
    command("crd", _crd, "print the CustomResourceDefinition as YAML")
    command("version", _version, "print the version")
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = parser().parse_args(argv)
    run: Command = arguments.run
    try:
        return run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has left, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _version(_: argparse.Namespace) -> int:
    print(f"epd {__version__}")
    return 0


def _crd(_: argparse.Namespace) -> int:
    import yaml

    from epd_operator.api.crd import crd

    print(yaml.safe_dump(crd(), sort_keys=False, width=120), end="")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from epd_operator.cli.status import show

    return show(
        name=arguments.name,
        namespace=arguments.namespace,
        everywhere=arguments.all_namespaces,
        watch=arguments.watch,
        output=arguments.output,
        kubeconfig=arguments.kubeconfig,
        context=arguments.context,
    )


def _run(arguments: argparse.Namespace) -> int:
    import asyncio

    from epd_operator.kube.credential import load_configuration
    from epd_operator.runtime import log
    from epd_operator.runtime.config import ConfigError, from_environment
    from epd_operator.runtime.operator import run

    form = arguments.log_format
    if form == "auto":
        form = "text" if sys.stderr.isatty() else "json"
    log.setup(form, arguments.log_level)
    try:
        config = from_environment()
    except ConfigError as error:
        print(f"epd: {error}", file=sys.stderr)
        return 2

    def load() -> Any:
        return load_configuration(arguments.kubeconfig, arguments.context)

    return asyncio.run(run(config, load))


if __name__ == "__main__":
    sys.exit(main())

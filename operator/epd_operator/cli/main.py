"""Entry point of `epd`: the argument parser, and one function per command."""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from epd_operator import __version__
from epd_operator.cli import usage as texts
from epd_operator.platform import PLATFORMS

# Each command imports what it needs: `epd version` must not pay for a Kubernetes client.
# ruff: noqa: PLC0415

Command = Callable[[argparse.Namespace], int]
Adder = Callable[..., argparse.ArgumentParser]

ROLES: Final = ("aggregated", "prefill", "decode", "encode")
PLUGINS: Final = ("epd",)
SHELLS: Final = ("bash", "zsh", "fish")
EXTRA: Final = "operator"
IN_EXTRA: Final = frozenset({"aiohttp", "kopf", "kubernetes", "prometheus_client", "rich"})
"""What the extra brings: only the commands that talk to a cluster need it, and an installation may lack it."""


def parser() -> argparse.ArgumentParser:
    """The complete command line."""
    root = argparse.ArgumentParser(
        prog="epd", description=texts.DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, run: Command, short: str, long: str | None = None) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name, help=short, description=long or short, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        added.set_defaults(run=run, parser=added)
        return added

    _offline(command)
    status = command("status", _status, "show deployments, their roles, conditions and pods", texts.STATUS)
    status.add_argument("name", nargs="?", metavar="NAME", help="one deployment; all of the namespace when left out")
    where = status.add_mutually_exclusive_group()
    where.add_argument("-n", "--namespace", help="namespace (default: the kubeconfig context's)")
    where.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces")
    status.add_argument("-w", "--watch", action="store_true", help="keep looking until Ctrl-C")
    status.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form (default: text)")
    for target in (status, operator := command("run", _run, "run the operator", texts.RUN)):
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
    shell = command("completion", _completion, "print the completion script of a shell", texts.COMPLETION)
    shell.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    command("version", _version, "print the version")
    return root


def _offline(command: Adder) -> None:
    """The commands that need no cluster."""
    validate = command("validate", _validate, "say what would be refused, before a pod exists", texts.VALIDATE)
    validate.usage = "epd validate [options] PATH... | [options] -- FLAGS... | [options] --cases FILE"
    validate.add_argument("paths", nargs="*", metavar="PATH", help="file, folder, or - for standard input")
    validate.add_argument("-o", "--output", choices=("text", "json", "sarif"), default="text", help="(default: text)")
    validate.add_argument(
        "--platform",
        choices=PLATFORMS,
        help="judge SGLang for this platform (default: what the object says; for command lines cuda-sm90)",
    )
    validate.add_argument(
        "--engine-version",
        metavar="VERSION",
        help="judge by the rules of this SGLang (default: what the object says; for command lines the newest known)",
    )
    validate.add_argument("--strict", action="store_true", help="warnings refuse, too")
    validate.add_argument(
        "--ours-only",
        action="store_true",
        help="pass over named files that cannot hold a DeepSeekV41Deployment, even unreadable ones; folders always do",
    )
    validate.add_argument(
        "--advisories", metavar="FILE", help="warn of the engine builds in this YAML list, as the chart's value does"
    )
    validate.add_argument(
        "--plugin",
        action="append",
        choices=PLUGINS,
        default=[],
        help="a plugin that the engine of the command lines loads; an object names its own",
    )
    validate.add_argument("--role", choices=ROLES, help="role of the command line (default: what its flags say)")
    validate.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the command line; repeatable"
    )
    validate.add_argument(
        "--cases", metavar="FILE", help="many command lines, a JSON object a line; - for standard input"
    )
    explain = command("explain", _explain, "show the final command line of each role, and why", texts.EXPLAIN)
    render = command("render", _render, "print every object that the operator would make", texts.RENDER)
    explain.add_argument(
        "--advisories", metavar="FILE", help="warn of the engine builds in this YAML list, as `validate` does"
    )
    explain.add_argument(
        "--turns-per-second",
        type=_rate,
        metavar="N",
        help="of each deployment: say how often its pool of windows would hit then",
    )
    for target, forms in ((explain, ("text", "json")), (render, ("yaml", "json"))):
        target.add_argument("paths", nargs="+", metavar="PATH", help="file, folder, or - for standard input")
        target.add_argument("-o", "--output", choices=forms, default=forms[0], help=f"(default: {forms[0]})")
    render.add_argument(
        "-n", "--namespace", type=_namespace, help="instead of the object's own (default: that, or default)"
    )
    render.add_argument("--router-image", metavar="IMAGE", help="of the router pods (default: as installed)")
    render.add_argument("--worker-image", metavar="IMAGE", help="of the Reference engine (default: as installed)")


def _namespace(text: str) -> str:
    if len(text) > 63 or re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", text, re.ASCII) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a namespace name: give at most 63 lower-case letters, digits and dashes, "
            "with a letter or digit at both ends"
        )
    return text


def _rate(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (result := float(text)) < math.inf:
            return result
    raise argparse.ArgumentTypeError(f"{text!r} is not a rate: give a number above zero, such as 25 or 0.5")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    pasted = None
    if given[:1] == ["validate"] and "--" in given:
        # Behind it stands another program's command line, which this parser must not read.
        at = given.index("--")
        given, pasted = given[:at], given[at + 1 :]
    root = parser()
    arguments = root.parse_args(given)
    if arguments.command == "validate":
        arguments.pasted = pasted
        _check(arguments.parser, arguments)
    run: Command = arguments.run
    try:
        status = run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        return _uninstalled(arguments.command, error)
    except OSError as error:
        return _unwritten(error)
    return status


def _uninstalled(command: str, error: ModuleNotFoundError) -> int:
    """The exit status when a package of the extra is missing; any other module's absence is a fault of ours."""
    name = (error.name or "").partition(".")[0]
    if name not in IN_EXTRA:
        raise error
    # The wheel by its file, never by its name: on the public index that name belongs to another project.
    wheel = f"epd-{__version__}-py3-none-any.whl"
    print(
        f"epd: `epd {command}` needs the extra {EXTRA!r} ({name} is not installed): pip install '{wheel}[{EXTRA}]'",
        file=sys.stderr,
    )
    return 2


def _unwritten(error: OSError) -> int:
    """The exit status when the output could not be written; `validate` knows a better one when its reader has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # such as `head`, which has seen enough
        return 0
    print(f"epd: the output cannot be written: {error.strerror or error}", file=sys.stderr)
    return 2


def _check(root: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End with a usage message when options of `validate` do not go together."""
    ways = [bool(arguments.paths), arguments.pasted is not None, arguments.cases is not None]
    if sum(ways) != 1:
        root.error("validate takes one of: PATH..., -- FLAGS..., --cases FILE")
    if arguments.pasted is None and (arguments.role or arguments.env):
        root.error("--role and --env go with a command line behind --")
    if arguments.paths and arguments.plugin:
        root.error("--plugin goes with command lines: an object has spec.engine.plugins")
    if arguments.cases is not None and arguments.output != "text":
        root.error("--cases answers with JSON rows: leave out -o")


def _validate(arguments: argparse.Namespace) -> int:
    gc.disable()  # nothing that modules make is garbage, and looking for it takes a tenth of the start
    try:
        from epd_operator.cli import validate
    finally:
        gc.enable()

    options = validate.Options(
        platform=arguments.platform,
        version=arguments.engine_version,
        output=arguments.output,
        strict=arguments.strict,
        ours_only=arguments.ours_only,
        advisories=arguments.advisories,
        plugins=tuple(arguments.plugin),
    )
    if arguments.cases is not None:
        return validate.cases(arguments.cases, options)
    if arguments.pasted is not None:
        return validate.command_line(arguments.pasted, arguments.env, arguments.role, options)
    return validate.files(arguments.paths, options)


def _explain(arguments: argparse.Namespace) -> int:
    from epd_operator.cli import explain

    return explain.show(arguments.paths, arguments.output, arguments.advisories, arguments.turns_per_second)


def _render(arguments: argparse.Namespace) -> int:
    from epd_operator.cli import render

    options = render.Options(arguments.output, arguments.namespace, arguments.router_image, arguments.worker_image)
    return render.show(arguments.paths, options)


def _version(_: argparse.Namespace) -> int:
    print(f"epd {__version__}")
    return 0


def _completion(arguments: argparse.Namespace) -> int:
    from epd_operator.cli.completion import script

    print(script(parser(), arguments.shell))
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

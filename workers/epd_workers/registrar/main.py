"""Command line: the registrar itself, ``draw-key`` and ``route``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from epd_workers import extra
from epd_workers.registrar import key, launch
from epd_workers.registrar.access import AccessError

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Sequence

EXIT_USAGE = 2


@extra.needed_by("epd-registrar", "router")
def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``epd-registrar``.

    Returns:
        Exit status: 0 after a clean end, 2 when the command line or a key file is wrong.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    own, flags = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    args = _parser().parse_args(own)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        if args.command == "draw-key":
            drawn = key.draw(args.file)
            logging.getLogger(__name__).info("%s: %s", args.file, "key drawn" if drawn else "key kept")
            return 0
        if args.command == "route":
            launch.route(flags, args.control_key_file, args.api_key_file)
            return 0
        return _register(args)
    except (key.KeyFileError, launch.FlagError, AccessError) as error:
        sys.stderr.write(f"epd-registrar: {error}\n")
        return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="epd-registrar", description="Keep the router's workers and the prefills' encoders equal to the pods."
    )
    parser.add_argument("--namespace", help="namespace of the engine pods")
    parser.add_argument("--selector", help="label selector of the engine pods")
    parser.add_argument("--router", default="http://127.0.0.1:8000", help="address of the router (%(default)s)")
    parser.add_argument("--control-key-file", type=Path, help="file with the router's control key")
    parser.add_argument("--engine-port", type=_port, default=30000, help="engines' HTTP port (%(default)s)")
    parser.add_argument("--encoder-port", type=_port, default=8997, help="encoder registration port (%(default)s)")
    parser.add_argument("--listen", type=_address, default=("0.0.0.0", 8081), help="own address (0.0.0.0:8081)")
    parser.add_argument("--resync", type=_seconds, default=5.0, help="seconds between passes at rest (%(default)s)")
    parser.add_argument(
        "--relist", type=_seconds, default=30.0, help="seconds after which the pods are listed again (%(default)s)"
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    draw = commands.add_parser("draw-key", help="write a random control key unless the file holds one")
    draw.add_argument("file", type=Path)
    route = commands.add_parser(
        "route", help="run the router with its keys", usage="epd-registrar route [options] -- SMG-LAUNCH-FLAGS"
    )
    route.add_argument("--control-key-file", type=Path, required=True, help="file with the control key")
    route.add_argument("--api-key-file", type=Path, help="file with the key that clients must present")
    return parser


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a number from 1 to 65535")
    return int(text)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address; give HOST:PORT, e.g. 0.0.0.0:8081")
    return host.strip("[]") or "0.0.0.0", _port(port)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a period; give 0.1 to 3600 seconds")
    return value


def _register(args: argparse.Namespace) -> int:
    missing = [
        f"--{name.replace('_', '-')}"
        for name in ("namespace", "selector", "control_key_file")
        if not getattr(args, name)
    ]
    if missing:
        raise launch.FlagError(f"missing: {', '.join(missing)}")
    from epd_workers.registrar import service  # noqa: PLC0415 - the other two commands need none of it

    try:
        version = f"smg {metadata.version('smg')}"
    except metadata.PackageNotFoundError:
        version = "unknown"
    settings = service.RegistrarSettings(
        namespace=args.namespace,
        selector=args.selector,
        router=args.router.rstrip("/"),
        control_key=key.read(args.control_key_file, "control"),
        engine_port=args.engine_port,
        encoder_port=args.encoder_port,
        listen=args.listen,
        resync=args.resync,
        relist=args.relist,
        pod=os.environ.get("POD_NAME", ""),
        version=version,
    )
    return asyncio.run(_until_signal(service.run(settings)))


async def _until_signal(work: contextlib.AbstractAsyncContextManager[None]) -> int:
    """Run until SIGTERM or SIGINT. Members stay registered: the router still drains with them."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with work:
        await stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The command line of ``epd-swapool``: all that it asks for, and all that is wrong with it at once."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Sequence

VALKEY_PORT: Final = 6379
MASTER_PORT: Final = 50051
MASTER_METRICS_PORT: Final = 9003
HEALTH_PORT: Final = 8088
# Below this neither Valkey, beside its own tables, nor Mooncake's allocator has room for a window.
LEAST_MEMORY: Final = 16 << 20
DESCRIPTION: Final = """\
Run one server of a pool of windows, and prove that it serves.

  epd-swapool valkey --memory BYTES                     Valkey: one server, enough for one machine or for TCP
  epd-swapool master                                    Mooncake: the master, which knows where everything is
  epd-swapool store --master HOST:PORT --memory BYTES   Mooncake: one store, which lends the pool its memory
"""
EPILOG: Final = """\
Each answers on --health-port:
  GET /health   200 if a request that was made just now was served, else 503 and why. For readiness.
  GET /live     503 if this server itself is at fault and a restart may help, else 200. For liveness. A store
                without a master is alive: it joins by itself as soon as there is one.
  GET /metrics  for Prometheus: capacity, bytes used, windows, evictions, expiries, refusals, where the server knows

Nothing is written to any disk. Nobody signs in: who may connect is for the network to decide (NetworkPolicy).
SIGTERM and SIGINT are passed on; the exit status is the server's own, 128 + N if it died of signal N, and 2 if the
command line is wrong. If the server ends, so does this.
"""
STORE_EPILOG: Final = """\
environment:
  POD_IP                                             default of --hostname
  MC_MIN_RPC_PORT, MC_MAX_RPC_PORT                   ports through which windows travel (15000 to 15099)
  MC_STORE_CLIENT_MIN_PORT, MC_STORE_CLIENT_MAX_PORT numbers that tell stores of one host apart (12300 to 12399)

On SIGTERM the store signs off from the master, so that nobody waits for it.
"""


@dataclass(frozen=True)
class ValkeyOptions:
    """A Valkey server.

    Attributes:
        memory: Bytes for windows and all else that the server holds.
        port: Where it listens.
        health_port: Where its supervisor answers.
    """

    memory: int
    port: int
    health_port: int


@dataclass(frozen=True)
class MasterOptions:
    """A Mooncake master.

    Attributes:
        port: Where it listens.
        metrics_port: Where it serves its own metrics.
        health_port: Where its supervisor answers.
    """

    port: int
    metrics_port: int
    health_port: int


@dataclass(frozen=True)
class StoreOptions:
    """A Mooncake store.

    Attributes:
        master: ``host:port``.
        memory: Bytes that it lends.
        hostname: Its address, as everybody who uses the pool reaches it.
        protocol: ``tcp`` or ``rdma``.
        devices: RDMA devices, separated by commas; all by default.
        health_port: Where its supervisor answers.
    """

    master: str
    memory: int
    hostname: str
    protocol: str
    devices: str
    health_port: int


Options = ValkeyOptions | MasterOptions | StoreOptions


class UsageError(Exception):
    """The command line cannot be followed.

    Attributes:
        faults: Everything that is wrong with it.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class _Parser(argparse.ArgumentParser):
    @override
    def error(self, message: str) -> Any:
        raise UsageError([message])


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line.

    Raises:
        UsageError: Something is wrong with it.
    """
    parser = _parser()
    given, extra = parser.parse_known_args(arguments)
    faults = [f"unknown argument {argument!r}" for argument in extra]
    if given.program is None:
        raise UsageError([*faults, "the program is missing: give valkey, master or store"])
    health = _port(given, "health-port", faults)
    options: Options
    if given.program == "valkey":
        options = ValkeyOptions(_memory(given, faults), _port(given, "port", faults), health)
        ports = [options.port, health]
    elif given.program == "master":
        options = MasterOptions(_port(given, "port", faults), _port(given, "metrics-port", faults), health)
        ports = [options.port, options.metrics_port, health]
    else:
        hostname = given.hostname or os.environ.get("POD_IP") or "127.0.0.1"
        options = StoreOptions(
            _master(given, faults), _memory(given, faults), hostname, _protocol(given, faults), given.devices, health
        )
        ports = [health]
    if 0 not in ports and len(set(ports)) < len(ports):
        faults.append(f"one port for two purposes ({', '.join(map(str, ports))}): give each its own")
    if faults:
        raise UsageError(faults)
    return options


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="epd-swapool", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    programs = parser.add_subparsers(dest="program", metavar="PROGRAM", parser_class=_Parser)
    valkey = programs.add_parser(
        "valkey", help="a Valkey server that holds windows", epilog=EPILOG, formatter_class=raw
    )
    valkey.add_argument(
        "--memory",
        metavar="BYTES",
        help="most that it may hold; beyond that the windows that would expire first are dropped",
    )
    valkey.add_argument("--port", default=VALKEY_PORT, help="where it listens, on every address (%(default)s)")
    master = programs.add_parser("master", help="the master of a Mooncake Store", epilog=EPILOG, formatter_class=raw)
    master.add_argument("--port", default=MASTER_PORT, help="where it listens, on every address (%(default)s)")
    master.add_argument("--metrics-port", default=MASTER_METRICS_PORT, help="its own metrics (%(default)s)")
    store = programs.add_parser("store", help="a Mooncake store", epilog=EPILOG + STORE_EPILOG, formatter_class=raw)
    store.add_argument("--master", metavar="HOST:PORT", help="the master to join, and to rejoin after it was away")
    store.add_argument("--memory", metavar="BYTES", help="size of the segment that it lends to the pool")
    store.add_argument(
        "--hostname", metavar="ADDRESS", help="its address, as others reach it ($POD_IP, else 127.0.0.1)"
    )
    store.add_argument("--protocol", default="tcp", help="tcp or rdma (%(default)s)")
    store.add_argument("--devices", metavar="NAMES", default="", help="RDMA devices, separated by commas (all)")
    for each in (valkey, master, store):
        each.add_argument("--health-port", default=HEALTH_PORT, help="where /health is answered (%(default)s)")
    return parser


def _port(given: argparse.Namespace, name: str, faults: list[str]) -> int:
    text = str(getattr(given, name.replace("-", "_")))
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 65535:
        return int(text)
    faults.append(f"--{name} {text}: it must be a port, 1 to 65535")
    return 0


def _memory(given: argparse.Namespace, faults: list[str]) -> int:
    text = given.memory
    if text is None:
        faults.append("--memory is missing: give the bytes that the pool may hold here")
    elif not (text.isascii() and text.isdigit() and int(text) >= LEAST_MEMORY):
        faults.append(f"--memory {text}: it must be a whole number of bytes, at least {LEAST_MEMORY} (16 MiB)")
    else:
        return int(text)
    return 0


def _master(given: argparse.Namespace, faults: list[str]) -> str:
    text: str = given.master or ""
    host, _, port = text.rpartition(":")
    if not text:
        faults.append("--master is missing: give the master's HOST:PORT")
    elif not host or not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        faults.append(f"--master {text}: it must be HOST:PORT")
    return text


def _protocol(given: argparse.Namespace, faults: list[str]) -> str:
    text: str = given.protocol
    if text not in {"tcp", "rdma"}:
        faults.append(f"--protocol {text}: it must be tcp or rdma")
    return text

"""The command line of ``epd-reference``."""

from __future__ import annotations

import argparse
import difflib
import os
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

ROLES = ("encode", "prefill", "decode", "aggregated")
VISIONS = ("local", "remote", "off")
SWITCH = ("on", "off")
COMMANDS = {
    "serve": "serve one role; the same as leaving the command out",
    "train": "train a checkpoint from nothing",
    "evaluate": "measure a checkpoint's accuracy",
    "inspect": "print the bytes of a checkpoint's caches",
}
DEFAULT_VISION = {"encode": "local", "prefill": "remote", "decode": "remote", "aggregated": "local"}
ANY_HOSTS = ("0.0.0.0", "::", "")
PROMPTED = frozenset({"prefill", "aggregated"})
"""Roles that run prompts."""
PLACES = {"swa-pool-config": "a file", "kv-disk-path": "a folder"}
DISK_BOUNDS = ("kv-disk-bytes", "kv-disk-hours")


@dataclass(frozen=True)
class Flag:
    """One flag: its default, what it means, and the range of a number or the choices of a word."""

    name: str
    default: str | int | float | None
    help: str
    low: float = 0
    high: float = float("inf")
    choices: tuple[str, ...] = ()

    @property
    def attribute(self) -> str:
        """The name of the option in `Options`."""
        return _field(self.name)

    def read(self, text: str) -> tuple[Any, str]:
        """Return the value of ``text`` and an empty string, or anything and what is wrong."""
        if self.choices and text not in self.choices:
            return None, f"--{self.name} is {text!r}: must be one of {', '.join(self.choices)}"
        if not isinstance(self.default, int | float):
            return text, ""
        kind = type(self.default)
        try:
            value = kind(text)
        except ValueError:
            wanted = "an integer" if kind is int else "a number"
            return None, f"--{self.name} is {text!r}: must be {wanted}"
        if not self.low <= value <= self.high:
            bound = f"from {self.low:g} to {self.high:g}" if self.high < float("inf") else f"at least {self.low:g}"
            return None, f"--{self.name} is {text}: must be {bound}"
        return value, ""


GROUPS: dict[str, tuple[Flag, ...]] = {
    "serving": (
        Flag("role", None, "what this server does for a request", choices=ROLES),
        Flag("host", "127.0.0.1", "address to listen on, for all ports"),
        Flag("port", 30000, "HTTP port", high=65535),
        Flag("served-model-name", "reference", "the model name that clients ask for"),
        Flag("advertise-host", None, "address that peers reach this server at (default: $POD_IP, else --host)"),
        Flag("max-body-bytes", 32 << 20, "largest request body", 1 << 10),
        Flag("drain-timeout", 45.0, "seconds that requests may go on after SIGTERM"),
    ),
    "engine": (
        Flag("context-length", 8192, "most tokens of a prompt and its answer together", 16, 1 << 20),
        Flag("page-size", 64, "tokens per key/value page, an even number; the same on prefill and decode", 1, 4096),
        Flag("kv-cache-dtype", "fp4", "how keys and values are stored; the same on prefill and decode: fp4 as released"
             " (windows FP8), bf16 for comparison", choices=("fp4", "bf16")),
        Flag("max-total-tokens", 65536, "tokens that all requests together may hold", 1),
        Flag("max-running-requests", 16, "requests that are computed at once", 1),
        Flag("max-queued-requests", 64, "requests that may wait; more are answered 503", 1),
        Flag("chunked-prefill-size", 512, "prompt tokens per step", 1),
        Flag("prefix-cache", "on", "whether prompts that begin alike share pages", choices=SWITCH),
        Flag("window-cache-tokens", 32768, "tokens whose window keys and values are kept for finished prompts"),
        Flag("kernels", "auto", "what computes over the caches: torch; triton, on a CPU only with TRITON_INTERPRET=1"
             " (slow, for tests); auto: torch on a CPU", choices=("auto", "torch", "triton")),
        Flag("threads", 1, "CPU threads of the model; more only help where as many cores are free", 1, 256),
        Flag("model-path", None, "directory of the checkpoint, the same in all roles (default: the packaged one)"),
        Flag("layout-key", "", "mixed into the page layout: servers with different keys never exchange pages"),
    ),
    "bounded replay (prefill and aggregated; decode: what its prefill servers do)": (
        Flag("decoder-replay", "on", "run the decoder half on the last 128 rows of each chunk only", choices=SWITCH),
        Flag("decoder-replay-preset", "0.5.23", "the SGLang version whose split and window floor it follows",
             choices=("0.5.23", "dsv41-37ae292e")),
        Flag("encoder-replay", "off", "rebuild the encoder half's windows of a prefix hit from its last 128 rows",
             choices=SWITCH),
    ),
    "returning conversations (prefill, decode and aggregated)": (
        Flag("swa-pool-config", None, "JSON file that names the pool of windows; read again when it changes; no pool is"
             " used while it is missing or holds {}"),
        Flag("swa-pool-publish", "exact", "which windows are stored: exact ones, or all, also those of conversations"
             " that replayed, which are approximate but let later turns hit", choices=("exact", "all")),
        Flag("kv-disk-path", None, "folder for key/value pages, which servers may share"),
        Flag("kv-disk-bytes", 1 << 30, "bytes that the pages in that folder may take", 1),
        Flag("kv-disk-hours", 72.0, "hours that a page is kept", 0.01),
        Flag("tenant", "", "owner of the windows and pages: servers never read those of another tenant"),
    ),
    "prefill and decode": (
        Flag("bootstrap-port", 8998, "prefill: where decode servers find it; decode: stands for a null port", 0, 65535),
        Flag("transfer-port", 0, "prefill: TCP port of the pages, 0 for any free one", high=65535),
        Flag("handshake-timeout", 30.0, "seconds to wait for the other half of a request", 0.01),
        Flag("silence-timeout", 15.0, "seconds without a sign of life before a peer counts as lost", 0.01),
    ),
    "images": (
        Flag("vision", None, "local: encode here; remote: in encode servers (prefill), in the pages already (decode);"
             " off: refuse images", choices=VISIONS),
        Flag("encoder-bootstrap-port", 8997, "prefill: where encode servers are registered", 0, 65535),
        Flag("encode-timeout", 30.0, "seconds for one try at one encode server", 0.01),
        Flag("encoder-probe-interval", 10.0, "seconds between health probes of encode servers", 0.01),
        Flag("image-timeout", 10.0, "seconds to fetch one image", 0.01),
        Flag("max-image-bytes", 20 << 20, "largest image file", 1),
        Flag("max-images", 16, "most images in one request", 1),
    ),
}  # fmt: skip
FLAGS = tuple(flag for group in GROUPS.values() for flag in group)


class UsageError(Exception):
    """The command line cannot be used; one message per fault in ``faults``."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True)
class Options:
    """The command line of ``epd-reference``; see the help of each flag."""

    role: str
    host: str
    port: int
    served_model_name: str
    advertise_host: str
    max_body_bytes: int
    drain_timeout: float
    context_length: int
    page_size: int
    max_total_tokens: int
    max_running_requests: int
    max_queued_requests: int
    chunked_prefill_size: int
    kv_cache_dtype: str
    prefix_cache: str
    window_cache_tokens: int
    decoder_replay: str
    decoder_replay_preset: str
    encoder_replay: str
    swa_pool_config: str | None
    swa_pool_publish: str
    kv_disk_path: str | None
    kv_disk_bytes: int
    kv_disk_hours: float
    tenant: str
    kernels: str
    threads: int
    model_path: str | None
    layout_key: str
    bootstrap_port: int
    transfer_port: int
    handshake_timeout: float
    silence_timeout: float
    vision: str
    encoder_bootstrap_port: int
    encode_timeout: float
    encoder_probe_interval: float
    image_timeout: float
    max_image_bytes: int
    max_images: int
    pod: str

    @property
    def disaggregated(self) -> bool:
        """Whether requests to this role carry a room."""
        return self.role in {"prefill", "decode"}


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line (without the program's name).

    Raises:
        UsageError: Holds every fault of the command line.
        SystemExit: After ``--help``.
    """
    known, unknown = _parser().parse_known_args(list(arguments))
    faults = [_unknown(argument) for argument in unknown if argument.startswith("-")]
    faults += [f"unexpected argument {argument!r}" for argument in unknown if not argument.startswith("-")]
    values: dict[str, Any] = {}
    for flag in FLAGS:
        text = getattr(known, flag.attribute)
        values[flag.attribute] = flag.default
        if text is not None:
            values[flag.attribute], fault = flag.read(text)
            faults += [fault] if fault else []
    if known.role is None:
        faults.append(f"--role is missing: must be one of {', '.join(ROLES)}")
    faults += _together(values)
    faults += _outside(values, {flag.name for flag in FLAGS if getattr(known, flag.attribute) is not None})
    if faults:
        raise UsageError(faults)
    values["vision"] = values["vision"] or DEFAULT_VISION[values["role"]]
    values["advertise_host"] = _advertised(values["advertise_host"], values["host"])
    return Options(**values, pod=os.environ.get("POD_NAME") or socket.gethostname())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="epd-reference",
        usage="epd-reference [serve] --role {encode,prefill,decode,aggregated} [flag ...]\n"
        "       epd-reference {train,evaluate,inspect} [--help] [flag ...]",
        description="DeepSeek-V4.1 in small, on a CPU: serves one role of a disaggregated deployment, with SGLang's "
        "protocol.\n\ncommands:\n" + "\n".join(f"  {name:<10}{text}" for name, text in COMMANDS.items()) + "\n\n"
        "example, a whole server on one port:\n  epd-reference --role aggregated --port 30000",
        epilog="SIGTERM drains: new requests are answered 503, running ones finish, then the server exits 0.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        exit_on_error=False,
    )
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            default = "" if flag.default in {None, ""} else f" (default: {flag.default})"
            metavar = "{" + ",".join(flag.choices) + "}" if flag.choices else flag.attribute.upper()
            # Values are judged by Flag.read and not by argparse, which would stop at the first fault.
            group.add_argument(f"--{flag.name}", metavar=metavar, help=flag.help + default)
    return parser


def _unknown(argument: str) -> str:
    name = argument.split("=", maxsplit=1)[0]
    near = difflib.get_close_matches(name, [f"--{flag.name}" for flag in FLAGS], 1)
    return f"unknown flag {name}" + (f", did you mean {near[0]}?" if near else "; see --help")


def _together(values: dict[str, Any]) -> list[str]:
    faults = []
    if values["role"] == "encode" and values["vision"] not in {None, "local"}:
        faults.append(f"--vision is {values['vision']!r}: an encode server always encodes images; leave it out")
    if values["role"] == "aggregated" and values["vision"] == "remote":
        faults.append("--vision is 'remote': an aggregated server encodes by itself; give local or off")
    total, page = values["max_total_tokens"], values["page_size"]
    if total is not None and page is not None and total < page:
        faults.append(f"--max-total-tokens is {total}: must hold at least one page of {page}")
    return faults


def _outside(values: dict[str, Any], given: Collection[str]) -> list[str]:
    """Faults in where windows and pages are kept outside the engine; ``given`` has the flags of the command line."""
    role, places = values["role"], [name for name in PLACES if name in given]
    if role == "encode":
        useless = [name for name in (*PLACES, "swa-pool-publish", *DISK_BOUNDS) if name in given]
        return [f"--{name} is given: an encode server keeps no windows or pages; leave it out" for name in useless]
    faults = [f"--{name} is empty: name {PLACES[name]}, or leave it out" for name in places if not values[_field(name)]]
    if "kv-disk-path" not in given:
        lost = [name for name in DISK_BOUNDS if name in given]
        faults += [f"--{name} is given without --kv-disk-path: name the folder, or leave it out" for name in lost]
    if role in PROMPTED:
        faults += [
            f"--{name} is given with --{switch} off: no prompt would look there; give --{switch} on, or leave "
            f"--{name} out"
            for name in places
            for switch in ("encoder-replay", "prefix-cache")
            if values[_field(switch)] == "off"
        ]
    if role == "decode" and places == ["kv-disk-path"]:
        faults.append(
            "--kv-disk-path is given without --swa-pool-config: a decode server stores both pages and windows, or "
            "neither; give both or leave --kv-disk-path out"
        )
    return faults


def _field(name: str) -> str:
    return name.replace("-", "_")


def _advertised(given: str | None, host: str) -> str:
    if given or os.environ.get("POD_IP"):
        return given or os.environ["POD_IP"]
    return "127.0.0.1" if host in ANY_HOSTS else host


def parse_or_exit(arguments: Sequence[str]) -> Options:
    """Read the command line; print every fault and exit with status 2 when there are any."""
    try:
        return parse(arguments)
    except UsageError as error:
        faults = error.faults
    except argparse.ArgumentError as error:
        faults = (str(error),)
    complain(faults)
    raise SystemExit(2)


def complain(faults: Sequence[str]) -> None:
    """Print every fault, and where help is."""
    for fault in faults:
        sys.stderr.write(f"epd-reference: {fault}\n")
    sys.stderr.write("epd-reference: see epd-reference --help\n")

"""Where the windows are, as one line of text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from epd_workers.swapool.memory import Memory
from epd_workers.swapool.mooncake import Mooncake
from epd_workers.swapool.valkey import Valkey

if TYPE_CHECKING:
    from epd_workers.swapool.engine import Engine

FORMS = (
    "memory:?bytes=N, valkey://[user:password@]host[:port][/database], valkeys:// for TLS, unix://path, or "
    "mooncake://host:port[?hostname=ADDRESS&protocol=tcp|rdma&devices=NAMES&segment=NAME]"
)
_OPTIONS = {"hostname", "protocol", "devices", "segment"}


def engine(address: str) -> Engine:
    """Return the engine for an address. Waits for nothing: whether the server is there shows in its answers.

    Mooncake's `hostname`, this machine's address as the stores reach it, is ``$POD_IP`` by default.

    Raises:
        ValueError: It has none of the forms, which the message names.
    """
    parts = urlsplit(address)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if parts.scheme == "memory" and options.keys() == {"bytes"} and options["bytes"].isdecimal():
        return Memory(int(options["bytes"]))
    if parts.scheme in {"valkey", "valkeys", "unix"} and (parts.hostname or parts.path.strip("/")):
        return Valkey(address)
    if parts.scheme == "mooncake" and parts.hostname and parts.port and options.keys() <= _OPTIONS:
        return Mooncake(parts.netloc, **{"hostname": os.environ.get("POD_IP", "127.0.0.1"), **options})
    raise ValueError(f"{parts.scheme or address!r} is not the address of a window pool: give {FORMS}")

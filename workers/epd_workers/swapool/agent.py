"""The process that holds the Mooncake Store client.

That client cannot live in an engine's process: its ``setup`` and ``close`` keep Python's lock for as long as they take,
which without a master is minutes; a call can hang for half a minute; and a process that ends while one hangs dies of a
segmentation fault. Here all that does no harm, and the parent process ends this one when it stalls.

It reads one request at a time from each of its sockets and answers it; the rows travel in memory that both processes
map, one slot for each socket. It ends when its first socket, which carries no requests, is closed at the other end.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import os
import socket
import struct
import sys
import threading
from typing import Any, Final

GET: Final = 1
PUT: Final = 2
READY: Final = b"ready"
REQUEST: Final = struct.Struct("<BQ")
REPLY: Final = struct.Struct("<q")
LONGEST_MESSAGE: Final = 4096
CONNECT_SECONDS: Final = 0.5
# A remote call that finds the master frozen comes back after this long; the library's own choice is 30 seconds.
SETTINGS: Final = {
    "MC_RPC_TIMEOUT_MS": "50",
    "MC_RPC_CONNECT_TIMEOUT_MS": "50",
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
    "MC_LOG_LEVEL": "ERROR",
    "GLOG_minloglevel": "2",
}
LIBRARIES: Final = (
    "the Python package mooncake-transfer-engine-non-cuda and the system libraries libcurl4, libibverbs1 and libnuma1 "
    "(Debian's names)"
)
NO_LIBRARY: Final = f"Mooncake does not load ({{error}}): install {LIBRARIES}, or choose another pool"


class _Unfit(Exception):
    pass


def main(arguments: list[str]) -> None:
    """Serve until the parent is gone.

    Args:
        arguments: One JSON object: `memory`, the shared memory's descriptor; `slot`, the bytes of one slot; `sockets`,
            the sockets' descriptors, the control socket first; `master`, `hostname`, `protocol`, `devices`, `segment`.
    """
    given = json.loads(arguments[0])
    control, *channels = (socket.socket(fileno=number) for number in given["sockets"])
    try:
        region = mmap.mmap(given["memory"], given["slot"] * len(channels))
        base = ctypes.addressof(ctypes.c_char.from_buffer(region))
        store, config = _store(given, base, len(region))
    except _Unfit as error:
        control.sendall(str(error).encode()[:LONGEST_MESSAGE])
        os._exit(1)
    for index, channel in enumerate(channels):
        where = base + index * given["slot"]
        threading.Thread(target=_serve, args=(store, config, channel, where, given["slot"]), daemon=True).start()
    control.sendall(READY)
    control.recv(1)
    # Not the library's own way out: see above. The process owns no memory of the pool, so nothing is lost.
    os._exit(0)


def _store(given: dict[str, Any], base: int, size: int) -> tuple[Any, Any]:
    try:
        library = importlib.import_module("mooncake.store")
    except (ImportError, OSError) as error:
        raise _Unfit(NO_LIBRARY.format(error=error)) from error
    host, _, port = given["master"].rpartition(":")
    try:
        # The library would try for minutes, and has no way to make it give up.
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise _Unfit(f"no Mooncake master at {given['master']}: {error}") from error
    store = library.MooncakeDistributedStore()
    where = (given["hostname"], "P2PHANDSHAKE", 0, 0, given["protocol"], given["devices"], given["master"])
    if (code := store.setup(*where)) != 0:
        raise _Unfit(f"the Mooncake master at {given['master']} does not take this client (code {code})")
    if (code := store.register_buffer(base, size)) != 0:
        raise _Unfit(f"Mooncake does not take {size} bytes of transfer buffers (code {code})")
    config = library.ReplicateConfig()
    config.replica_num = 1
    if given["segment"]:
        config.preferred_segment = given["segment"]
    return store, config


def _serve(store: Any, config: Any, channel: socket.socket, where: int, slot: int) -> None:
    while request := channel.recv(LONGEST_MESSAGE):
        operation, size = REQUEST.unpack_from(request)
        key = request[REQUEST.size :].decode()
        code = store.get_into(key, where, slot) if operation == GET else store.upsert_from(key, where, size, config)
        channel.sendall(REPLY.pack(code))


if __name__ == "__main__":
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    main(sys.argv[1:])

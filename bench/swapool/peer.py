"""The other end of a bare TCP connection: sends as many bytes as it is asked for, or takes as many."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

from bench.epd.fleet import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator

GET: Final = b"G"
PUT: Final = b"P"


def receive(sock: socket.socket, buffer: bytearray) -> None:
    """Fill a buffer.

    Raises:
        ConnectionError: The other end closed.
    """
    view = memoryview(buffer)
    while view:
        count = sock.recv_into(view)
        if not count:
            raise ConnectionError("closed")
        view = view[count:]


@contextlib.contextmanager
def running(size: int) -> Iterator[int]:
    """Start one for objects of `size` bytes; its port."""
    process = subprocess.Popen(  # noqa: S603 - this very module
        [sys.executable, "-m", "bench.swapool.peer", str(size)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def serve(size: int) -> None:
    """Answer every connection, each in a thread of its own, until killed."""
    listener = socket.create_server((HOST, 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        near, _ = listener.accept()
        threading.Thread(target=_answer, args=(near, size), daemon=True).start()


def _answer(near: socket.socket, size: int) -> None:
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = bytearray(size)
    with contextlib.suppress(OSError):
        while asked := near.recv(1):
            if asked == GET:
                near.sendall(data)
            else:
                receive(near, data)
                near.sendall(PUT)


if __name__ == "__main__":
    serve(int(sys.argv[1]))

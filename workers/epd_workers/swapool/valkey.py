"""Windows in a Valkey or Redis server, which expires them by itself.

The ``valkey`` library connects, encrypts and signs in. What follows is one command and one reply at a time, which this
module writes and reads by itself: the library restarts its timeout with every piece that arrives, so that a slow
server could hold a call for ever, and copies a large value several times.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any, Final

from valkey.connection import Connection, parse_url
from valkey.exceptions import ValkeyError

from epd_workers.swapool.engine import Full, Oversize, Unavailable

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

# The longest line before a value: "$", a length, and the line's end; an error's text is cut there.
LINE: Final = 512
CONNECT: Final = 1.0


class Valkey:
    """A server of the Redis protocol.

    Args:
        url: ``valkey://[user:password@]host[:port][/database]``, ``valkeys://`` for TLS, or ``unix://path``.
    """

    name = "valkey"
    local = False

    def __init__(self, url: str) -> None:
        self._options: dict[str, Any] = dict(parse_url(url))
        self._kind = self._options.pop("connection_class", Connection)
        host, port = self._options.get("host", "localhost"), self._options.get("port", 6379)
        self._address = self._options.get("path") or f"{host}:{port}"

    def sessions(self, count: int, size: int) -> Sequence[_Session]:
        """Return sessions with a connection each."""
        options = {"lib_name": None, "lib_version": None, **self._options}
        return [_Session(self._kind(**options), self._address, size) for _ in range(count)]

    def close(self) -> None:
        """Nothing is shared."""


class _Session:
    def __init__(self, connection: Any, address: str, size: int) -> None:
        self._connection = connection
        self._address = address
        # Pages that no window ever reaches are never touched, and cost nothing.
        self._buffer = memoryview(bytearray(size + LINE))
        self._size = size

    def open(self, deadline: float) -> None:
        try:
            self._connect(max(CONNECT, deadline - time.monotonic()))
        except (OSError, ValkeyError) as error:
            raise self._gone(error) from error

    def close(self) -> None:
        self._connection.disconnect()

    def read(self, key: str, deadline: float) -> tuple[memoryview, memoryview] | None:
        name = key.encode()
        self._send(deadline, b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(name), name))
        try:
            return self._value(deadline)
        except (OSError, ValueError) as error:
            raise self._gone(error) from error

    def write(self, key: str, head: bytes, data: bytes, ttl: float, deadline: float) -> None:
        name, life = key.encode(), b"%d" % max(1, round(ttl * 1000))
        before = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b" % (len(name), name, len(head) + len(data), head)
        after = b"\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(life), life)
        self._send(deadline, before, data, after)
        try:
            end, _ = self._line(deadline)
        except (OSError, ValueError) as error:
            raise self._gone(error) from error
        line = bytes(self._buffer[:end])
        if line.startswith(b"-OOM"):
            raise Full(line.decode(errors="replace"))
        if line != b"+OK":
            raise self._gone(ValueError(line.decode(errors="replace")))

    def _value(self, deadline: float) -> tuple[memoryview, memoryview] | None:
        end, have = self._line(deadline)
        line = bytes(self._buffer[:end])
        if line in {b"$-1", b"_"}:
            return None
        if not line.startswith(b"$"):
            raise ValueError(line.decode(errors="replace"))
        length, start = int(line[1:]), end + 2
        if length < 0 or length > self._size:
            # Reading it to its end would take as long as it is.
            self._connection.disconnect()
            raise Oversize
        stop = start + length
        while have < stop + 2:
            have += self._receive(self._buffer[have : stop + 2], deadline)
        head = min(start + 64, stop)
        return self._buffer[start:head], self._buffer[head:stop]

    def _line(self, deadline: float) -> tuple[int, int]:
        """Read until a line is whole; return where it ends and how many bytes are there."""
        have, end = 0, -1
        while end < 0:
            if have >= LINE:
                raise ValueError("a reply that does not begin with a line")
            have += self._receive(self._buffer[have:], deadline)
            end = bytes(self._buffer[: min(have, LINE)]).find(b"\r\n")
        return end, have

    def _receive(self, room: memoryview, deadline: float) -> int:
        self._patience(deadline)
        count: int = self._connection._sock.recv_into(room)  # noqa: SLF001 - see the module's docstring
        if not count:
            raise ConnectionError("the server closed the connection")
        return count

    def _send(self, deadline: float, *pieces: bytes) -> None:
        try:
            sock = self._connect(CONNECT)
            if time.monotonic() > deadline:
                # The next call finds the connection ready: a slow start must not mean no start.
                raise Unavailable(f"{self._address}: connecting took too long")
            for piece in pieces:
                self._patience(deadline)
                sock.sendall(piece)
        except (OSError, ValkeyError) as error:
            raise self._gone(error) from error

    def _connect(self, timeout: float) -> socket.socket:
        connection = self._connection
        # A restarted server has closed what was open: that must not cost every session a lookup.
        if connection._sock is not None and _readable(connection._sock):  # noqa: SLF001 - see the module's docstring
            connection.disconnect()
        connection.socket_timeout = connection.socket_connect_timeout = timeout
        connection.connect()
        sock: socket.socket = connection._sock  # noqa: SLF001 - see the module's docstring
        return sock

    def _patience(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("no complete answer in time")
        self._connection._sock.settimeout(remaining)  # noqa: SLF001 - see the module's docstring

    def _gone(self, error: Exception) -> Unavailable:
        """Drop the connection: what it may still bring belongs to no later call."""
        self._connection.disconnect()
        return Unavailable(f"{self._address}: {error}")


def _readable(sock: socket.socket) -> bool:
    """Whether something came on a connection that owes nothing: its end, as a rule."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))

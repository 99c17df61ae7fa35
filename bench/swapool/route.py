"""The ways of moving a window's bytes: through the pool's client, through a bare one, over a socket, in memory."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import valkey

from bench.epd.fleet import HOST
from bench.swapool.peer import GET, PUT, receive
from epd_workers.swapool.address import engine
from epd_workers.swapool.agent import SETTINGS
from epd_workers.swapool.key import Key, Namespace
from epd_workers.swapool.pool import WindowPool

if TYPE_CHECKING:
    from bench.swapool.servers import EngineName

Way = Literal["client", "bare", "tcp", "copy"]
TTL: Final = 600.0
PATIENCE: Final = 20.0
ROWS: Final = 128


@dataclass(frozen=True)
class Place:
    """Where a client's objects go.

    Attributes:
        engine: Kind of the pool.
        address: Of the pool.
        pool_port: Of Valkey or of Mooncake's master.
        peer_port: Of the other end of a bare connection.
        size: Bytes of an object, a multiple of `ROWS`.
        owner: Number of the client; none finds another's.
    """

    engine: EngineName
    address: str
    pool_port: int
    peer_port: int
    size: int
    owner: int = 0


class Route(Protocol):
    """One way; objects by their number."""

    def put(self, number: int) -> None:
        """Store one and wait until it is."""

    def get(self, number: int) -> None:
        """Bring one that was stored into this process's memory.

        Raises:
            RuntimeError: It is not there.
        """


def route(way: Way, place: Place) -> Route:
    """One way to a place; it lasts until its process ends.

    Raises:
        RuntimeError: The pool does not answer.
    """
    match way:
        case "client":
            return _Client(place)
        case "bare":
            return _BareValkey(place) if place.engine == "valkey" else _BareMooncake(place)
        case "tcp":
            return _Tcp(place)
        case "copy":
            return _Copy(place)


class _Client:
    """The pool's client, which checks every byte."""

    def __init__(self, place: Place) -> None:
        self._space = Namespace("bench", "", "", "", "", 0, 1, ROWS, place.size // ROWS, ROWS, tenant=str(place.owner))
        self._data = os.urandom(place.size)
        self._pool = WindowPool(engine(place.address), place.size)
        self._ready()

    def put(self, number: int) -> None:
        self._pool.put(self._key(number), self._data, TTL)
        if not self._pool.drain(PATIENCE):
            raise RuntimeError("the pool does not store")

    def get(self, number: int) -> None:
        if self._pool.get(self._key(number), PATIENCE) is None:
            raise RuntimeError(f"the pool lost a window: {self._pool.fault or 'no fault is known'}")

    def _key(self, number: int) -> Key:
        return Key(self._space, hashlib.sha256(b"%d" % number).digest(), ROWS)

    def _ready(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.put(0)
            if self._pool.get(self._key(0), PATIENCE) is not None:
                return
            time.sleep(0.05)
        raise RuntimeError(f"the pool does not answer: {self._pool.fault}")


class _BareValkey:
    """The `valkey` library, as its own examples use it."""

    def __init__(self, place: Place) -> None:
        self._client = valkey.Valkey(host=HOST, port=place.pool_port)
        self._data = os.urandom(place.size)
        self._owner = place.owner

    def put(self, number: int) -> None:
        self._client.set(self._name(number), self._data, px=round(TTL * 1000))

    def get(self, number: int) -> None:
        if self._client.get(self._name(number)) is None:
            raise RuntimeError("Valkey lost an object")

    def _name(self, number: int) -> str:
        return f"bare/{self._owner}/{number}"


class _BareMooncake:
    """Mooncake's client in this very process, with a registered buffer."""

    def __init__(self, place: Place) -> None:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        library = importlib.import_module("mooncake.store")
        self._size, self._owner = place.size, place.owner
        self._buffer = ctypes.create_string_buffer(os.urandom(self._size), self._size)
        self._where = ctypes.addressof(self._buffer)
        self._store = library.MooncakeDistributedStore()
        given = (HOST, "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", f"{HOST}:{place.pool_port}")
        self._config = library.ReplicateConfig()
        if self._store.setup(*given) != 0 or self._store.register_buffer(self._where, self._size) != 0:
            raise RuntimeError("Mooncake does not take a bare client")

    def put(self, number: int) -> None:
        if self._store.upsert_from(self._name(number), self._where, self._size, self._config) != 0:
            raise RuntimeError("Mooncake does not store an object")

    def get(self, number: int) -> None:
        if self._store.get_into(self._name(number), self._where, self._size) != self._size:
            raise RuntimeError("Mooncake lost an object")

    def _name(self, number: int) -> str:
        return f"bare/{self._owner}/{number}"


class _Tcp:
    """A socket whose other end has the bytes ready."""

    def __init__(self, place: Place) -> None:
        self._socket = socket.create_connection((HOST, place.peer_port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(place.size)

    def put(self, number: int) -> None:  # noqa: ARG002 - it keeps nothing
        self._socket.sendall(PUT)
        self._socket.sendall(self._buffer)
        self._socket.recv(1)

    def get(self, number: int) -> None:  # noqa: ARG002 - as above
        self._socket.sendall(GET)
        receive(self._socket, self._buffer)


class _Copy:
    """This process's own memory."""

    def __init__(self, place: Place) -> None:
        self._data = os.urandom(place.size)
        self._kept: list[Any] = [b""] * 2

    def put(self, number: int) -> None:
        self._kept[number % 2] = bytearray(self._data)

    def get(self, number: int) -> None:
        self._kept[number % 2] = bytearray(self._data)

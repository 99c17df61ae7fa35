"""Windows in a Mooncake Store, through a process of our own that can be ended when it hangs."""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from epd_workers.swapool.agent import GET, LONGEST_MESSAGE, PUT, READY, REPLY, REQUEST
from epd_workers.swapool.engine import Full, Oversize, Taken, Unavailable
from epd_workers.swapool.header import SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

# Codes of Mooncake's store (mooncake-store/include/types.h).
NO_ROOM: Final = -200
TOO_SMALL: Final = -600
# Another put of the same key began before this one ended.
NOT_OURS: Final = -601
# What is the matter with one object: absent, being written, gone while it was read.
OBJECT: Final = range(-799, -699)
# A call that takes longer hangs: it is not worth a thread, and the process it hangs in is ended.
STALL: Final = 1.0
# Loading the library and joining takes 0.2 s on an idle core.
START: Final = 5.0


class Mooncake:
    """A store behind one master.

    Args:
        master: ``host:port`` of the master.
        hostname: This machine's address, as the stores reach it.
        protocol: ``tcp`` or ``rdma``.
        devices: RDMA devices, separated by commas; all by default.
        segment: Name of the store to prefer for puts; the master's choice by default.
    """

    name = "mooncake"
    local = False

    def __init__(
        self,
        master: str,
        *,
        hostname: str,
        protocol: str = "tcp",
        devices: str = "",
        segment: str = "",
    ) -> None:
        self._given = {
            "master": master,
            "hostname": hostname,
            "protocol": protocol,
            "devices": devices,
            "segment": segment,
        }
        self._agent: _Agent | None = None

    def sessions(self, count: int, size: int) -> Sequence[_Session]:
        """Return sessions that share one process."""
        slot = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._agent = agent = _Agent(self._given, count, slot)
        return [_Session(agent, index, slot) for index in range(count)]

    def close(self) -> None:
        """End the process."""
        if self._agent is not None:
            self._agent.close()


class _Session:
    def __init__(self, agent: _Agent, index: int, slot: int) -> None:
        self._agent = agent
        self._index = index
        self._slot = slot
        self._buffer = agent.memory[index * slot : (index + 1) * slot]

    def open(self, deadline: float) -> None:
        self._agent.channel(self._index, max(deadline, time.monotonic() + START))

    def close(self) -> None:
        self._buffer.release()

    def read(self, key: str, deadline: float) -> tuple[memoryview, memoryview] | None:
        code = self._agent.call(self._index, REQUEST.pack(GET, self._slot) + key.encode(), deadline)
        if code in OBJECT:
            return None
        if code == TOO_SMALL:
            raise Oversize
        if code < 0:
            raise Unavailable(f"the store answers with code {code}")
        return self._buffer[: min(SIZE, code)], self._buffer[min(SIZE, code) : code]

    def write(self, key: str, head: bytes, data: bytes, ttl: float, deadline: float) -> None:  # noqa: ARG002 - no expiry
        size = len(head) + len(data)
        self._buffer[: len(head)] = head
        self._buffer[len(head) : size] = data
        code = self._agent.call(self._index, REQUEST.pack(PUT, size) + key.encode(), deadline)
        if code == NO_ROOM:
            raise Full(f"the store answers with code {code}")
        if code == NOT_OURS or code in OBJECT:
            raise Taken(f"the store answers with code {code}")
        if code != 0:
            raise Unavailable(f"the store answers with code {code}")


class _Agent:
    """The process, its memory and its sockets; started when it is needed, ended when it hangs, then restarted."""

    def __init__(self, given: dict[str, str], slots: int, slot: int) -> None:
        self._given = given
        self._slots = slots
        self._slot = slot
        self._descriptor = os.memfd_create("swapool")
        os.ftruncate(self._descriptor, slots * slot)
        self.memory = memoryview(mmap.mmap(self._descriptor, slots * slot))
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._channels: list[socket.socket] = []
        self._closed = False
        self._failure = ""

    def call(self, index: int, request: bytes, deadline: float) -> int:
        """Make one call in the process.

        It may last until `STALL`, past the deadline: the buffer is not free before. Then the process is ended.

        Raises:
            Unavailable: No answer.
        """
        begun = time.monotonic()
        channel = self.channel(index, deadline)
        try:
            channel.settimeout(max(deadline, begun + STALL) - time.monotonic())
            channel.sendall(request)
            reply = channel.recv(REPLY.size)
        except TimeoutError:
            self._end(channel)
            raise Unavailable(f"a call of the store at {self._given['master']} hung for {STALL} s") from None
        except OSError as error:
            self._end(channel)
            raise Unavailable(f"the store's client ended: {error}") from error
        if len(reply) != REPLY.size:
            self._end(channel)
            raise Unavailable("the store's client ended")
        code: int = REPLY.unpack(reply)[0]
        return code

    def channel(self, index: int, deadline: float) -> socket.socket:
        """Return a session's socket, after starting the process if there is none.

        Raises:
            Unavailable: It does not run by the deadline, or there is a reason for it not to.
        """
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise Unavailable(self._failure or "the store's client is not ready yet")
        try:
            if self._closed:
                raise Unavailable("closed")
            if self._process is None:
                self._failure = self._start()
            if self._failure:
                raise Unavailable(self._failure)
            return self._channels[index]
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the process for good; a call under way fails."""
        self._closed = True
        # A thread that waits for the start holds the lock.
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._stop()
            os.close(self._descriptor)

    def _start(self) -> str:
        """Start the process; return why it does not run, or nothing if it does."""
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(self._slots + 1)]
        theirs = [pair[1] for pair in pairs]
        numbers = [each.fileno() for each in theirs]
        given = {**self._given, "memory": self._descriptor, "slot": self._slot, "sockets": numbers}
        self._process = subprocess.Popen(  # noqa: S603 - this very package
            [sys.executable, "-m", "epd_workers.swapool.agent", json.dumps(given)],
            pass_fds=[self._descriptor, *numbers],
            stdin=subprocess.DEVNULL,
        )
        for each in theirs:
            each.close()
        self._control, *self._channels = (pair[0] for pair in pairs)
        self._control.settimeout(START)
        try:
            message = self._control.recv(LONGEST_MESSAGE)
        except OSError as error:
            message = f"the store's client did not start: {error}".encode()
        if message == READY:
            return ""
        self._stop()
        return message.decode(errors="replace") or "the store's client ended at its start"

    def _end(self, channel: socket.socket) -> None:
        """End the process that this channel leads to, if it has not been replaced already."""
        with self._lock:
            if channel in self._channels:
                self._stop()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        for each in (self._control, *self._channels):
            if each is not None:
                each.close()
        self._control, self._channels = None, []

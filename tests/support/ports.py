"""Ports that nobody listens on."""

from __future__ import annotations

import contextlib
import socket

HOST = "127.0.0.1"


def free_port(host: str = HOST) -> int:
    """A TCP port that nobody listens on right now."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = HOST) -> list[int]:
    """Different TCP ports that nobody listens on right now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]

"""How long each wait of a transfer may last."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """Bounds of the waits of a transfer, in seconds.

    Attributes:
        handshake: For the other half of a room to turn up, on either side.
        hello: For a new connection to say which room it is for.
        silence: Without any frame from the peer before it counts as lost.
        heartbeat: Between signs of life while a prefill has nothing to send.
    """

    handshake: float = 30.0
    hello: float = 5.0
    silence: float = 15.0
    heartbeat: float = 3.0

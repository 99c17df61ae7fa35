"""The interface of a server that holds windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer


class Unavailable(Exception):
    """The server gave no usable answer in time: it is down, frozen, refusing or not talking its protocol."""


class Full(Exception):
    """The server works and has no room for this window."""


class Taken(Exception):
    """The server works, and another writer is writing this key at this moment."""


class Oversize(Exception):
    """The server holds something under this key that is larger than any window."""


class Session(Protocol):
    """One thread's access to the server, with a buffer that no one else reads or writes.

    Deadlines are in seconds of ``time.monotonic``. A session keeps to them as well as its protocol lets it; callers do
    not rely on that.
    """

    def open(self, deadline: float) -> None:
        """Get ready, so that the first read need not.

        Raises:
            Unavailable: The next read or write tries again.
        """

    def read(self, key: str, deadline: float) -> tuple[Buffer, Buffer] | None:
        """Return header and rows, valid until the session's next call; None where there is nothing.

        Raises:
            Unavailable: No usable answer.
            Oversize: The answer does not fit the buffer.
        """

    def write(self, key: str, head: bytes, data: bytes, ttl: float, deadline: float) -> None:
        """Store header and rows, in place of what was there, for `ttl` seconds where the server can.

        Raises:
            Unavailable: No usable answer; the window may be stored or not.
            Full: It is not stored.
            Taken: Another writer's may be.
        """

    def close(self) -> None:
        """Close the connection. No other call is under way."""


class Engine(Protocol):
    """A kind of server at one address."""

    @property
    def name(self) -> str:
        """For logs."""

    @property
    def local(self) -> bool:
        """Whether calls wait for nothing outside this process, and so need no thread to wait in."""

    def sessions(self, count: int, size: int) -> Sequence[Session]:
        """Return `count` sessions whose buffers hold `size` bytes each, header included. Waits for nothing."""

    def close(self) -> None:
        """Release what the sessions share, even while they are in use."""

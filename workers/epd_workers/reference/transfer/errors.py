"""What can go wrong while pages or embeddings move, as seen by the request that needs them."""

from __future__ import annotations


def describe(error: BaseException) -> str:
    """Return an error's text, or its kind where it has none (a closed connection, a passed deadline)."""
    return str(error) or type(error).__name__


class TransferError(Exception):
    """The transfer of this request failed; the server and other requests are unharmed.

    Attributes:
        retryable: False when another try at the same pair of servers must fail too.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class DuplicateRoomError(TransferError):
    """The room is in use by another request."""

    def __init__(self, room: int) -> None:
        super().__init__(
            f"bootstrap_room {room} is in use by another request; every request needs a room of its own",
            retryable=False,
        )
        self.room = room

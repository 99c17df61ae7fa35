"""What can go wrong while pages or embeddings move, as seen by the request that needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


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


class PeerFailedError(TransferError):
    """The other half of the request failed: both halves then answer alike, since a router returns either's answer.

    Attributes:
        status: HTTP status that the other half answers with, 400 to 599.
        code: Its error code.
    """

    def __init__(self, message: str, *, status: int = 500, code: str = "transfer_failed") -> None:
        super().__init__(message, retryable=status >= 500)
        self.status = status
        self.code = code

    @classmethod
    def parse(cls, meta: Mapping[str, Any], room: int) -> Self:
        """Read what a peer said of its failure; whatever is odd in it counts as a plain failure."""
        message, status, code = meta.get("message"), meta.get("status"), meta.get("code")
        text = message if isinstance(message, str) and message else "no reason given"
        if not isinstance(status, int) or not 400 <= status <= 599 or not isinstance(code, str):
            return cls(f"the prefill server failed room {room}: {text}")
        # What is wrong with the request needs no mention of who found it.
        return cls(text if status < 500 else f"the prefill server failed room {room}: {text}", status=status, code=code)

    def meta(self) -> dict[str, Any]:
        """Return the error for the peer."""
        return {"message": str(self), "status": self.status, "code": self.code}

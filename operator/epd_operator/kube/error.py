"""What can go wrong between us and the API server, as a tree.

ApiError
├── Transport          no answer: refused, reset, timed out, unreadable
└── StatusError        an answer with an error status
    ├── Unauthorized     401       the credentials are not accepted
    ├── Forbidden        403       RBAC, quota, policy, or a namespace that is going away
    ├── NotFound         404
    ├── Conflict         409       resourceVersion, uid or ownership differs
    ├── Gone             410       a list or watch that starts too far back
    ├── Invalid          400, 422  the object breaks a rule
    ├── TooManyRequests  429       carries the wait that the server asked for
    └── ServerError      5xx       also a failing admission webhook
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGE_LIMIT = 600
"""Characters of a server's message that are kept: enough for a quota or a CEL message, too little to flood a log."""


class ApiError(Exception):
    """Any failed call.

    Attributes:
        call: Method and path, such as `PATCH /api/v1/namespaces/a/services/b`.
        message: What the server or the network said; never a header, so never a credential.
    """

    def __init__(self, call: str, message: str) -> None:
        super().__init__(f"{call}: {message}")
        self.call = call
        self.message = message


class Transport(ApiError):
    """No usable answer arrived; whether a write took effect is unknown."""


class StatusError(ApiError):
    """The API server answered with an error status.

    Attributes:
        status: HTTP status.
        reason: The machine-readable reason of the Status object, such as `AlreadyExists`; may be empty.
        causes: The machine-readable reasons of its details, such as `NamespaceTerminating`.
    """

    statuses: ClassVar[frozenset[int]] = frozenset()

    def __init__(self, call: str, message: str, *, status: int, reason: str = "") -> None:
        super().__init__(call, message)
        self.status = status
        self.reason = reason
        self.causes: frozenset[str] = frozenset()


class Unauthorized(StatusError):
    """Credentials are missing, expired or wrong."""

    statuses = frozenset({401})


class Forbidden(StatusError):
    """Not allowed: RBAC, quota, admission policy, or a terminating namespace."""

    statuses = frozenset({403})


class NotFound(StatusError):
    """No such object, kind or namespace."""

    statuses = frozenset({404})


class Conflict(StatusError):
    """The object is not in the state that the call asked for (resourceVersion, uid, name taken)."""

    statuses = frozenset({409})


class Gone(StatusError):
    """The asked resourceVersion or continue token has been compacted away; list again."""

    statuses = frozenset({410})


class Invalid(StatusError):
    """The object breaks the schema, a CEL rule or strict decoding."""

    statuses = frozenset({400, 422})


class TooManyRequests(StatusError):
    """The server is shedding load.

    Attributes:
        retry_after: Seconds to wait before the next try.
    """

    statuses = frozenset({429})

    def __init__(self, call: str, message: str, *, status: int, reason: str = "", retry_after: float = 1.0) -> None:
        super().__init__(call, message, status=status, reason=reason)
        self.retry_after = retry_after


class ServerError(StatusError):
    """The server failed; trying again later may help."""

    statuses = frozenset(range(500, 600))


def from_answer(call: str, status: int, body: bytes, headers: Mapping[str, str]) -> StatusError:
    """The error for an answer with status >= 400.

    Args:
        call: Method and path.
        status: HTTP status.
        body: A Status object in JSON, or what a proxy in between sent.
        headers: Answer headers; only `Retry-After` is read.
    """
    document = _status_object(body)
    message = document.get("message") or body[:MESSAGE_LIMIT].decode(errors="replace").strip() or f"HTTP {status}"
    reason = str(document.get("reason") or "")
    text = str(message)[:MESSAGE_LIMIT]
    asked = headers.get("Retry-After") or (document.get("details") or {}).get("retryAfterSeconds")
    error = _of_status(call, status, text, reason, asked)
    error.causes = frozenset(str(cause.get("reason")) for cause in (document.get("details") or {}).get("causes") or ())
    return error


def _of_status(call: str, status: int, text: str, reason: str, asked: Any) -> StatusError:
    if status in TooManyRequests.statuses:
        return TooManyRequests(call, text, status=status, reason=reason, retry_after=_seconds(asked))
    for kind in (Unauthorized, Forbidden, NotFound, Conflict, Gone, Invalid, ServerError):
        if status in kind.statuses:
            return kind(call, text, status=status, reason=reason)
    return StatusError(call, text, status=status, reason=reason)


def _status_object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) and document.get("kind") == "Status" else {}


def _seconds(value: Any) -> float:
    try:
        return max(0.1, float(value))
    except (TypeError, ValueError):
        return 1.0

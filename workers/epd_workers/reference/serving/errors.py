"""Every failure as one JSON shape: OpenAI's ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from epd_workers.reference.engine.request import Aborted, EngineFailed, InvalidRequest, PromptTooLong, QueueFull
from epd_workers.reference.model.interface import BadImage, LayoutMismatch
from epd_workers.reference.transfer.body import BodyError
from epd_workers.reference.transfer.encoders import EncodersUnavailableError, ImageRefusedError
from epd_workers.reference.transfer.errors import DuplicateRoomError, PeerFailedError, TransferError

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RETRY_AFTER = {"Retry-After": "1"}
TYPES = {400: "invalid_request_error", 404: "not_found_error", 413: "invalid_request_error", 503: "service_unavailable"}

# The first row that fits counts.
TABLE: tuple[tuple[tuple[type[Exception], ...], int, str], ...] = (
    ((BodyError,), 400, "invalid_json"),
    ((PromptTooLong,), 400, "context_length_exceeded"),
    ((BadImage, ImageRefusedError), 400, "invalid_image"),
    ((InvalidRequest,), 400, "invalid_value"),
    ((DuplicateRoomError,), 400, "duplicate_room"),
    ((QueueFull,), 503, "overloaded"),
    ((EncodersUnavailableError,), 503, "no_encoder"),
    ((TransferError, LayoutMismatch), 500, "transfer_failed"),
    ((Aborted,), 500, "aborted"),
    ((EngineFailed,), 500, "engine_failed"),
)


class ApiError(Exception):
    """A failure with the status and the fields of its answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the answer."""
        kind = TYPES.get(self.status, "internal_server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> web.Response:
        """Return the answer."""
        return web.json_response(self.body(), status=self.status, headers=self.headers)


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Return the error of a request that is wrong in itself (400)."""
    return ApiError(400, message, code=code, param=param)


def busy(message: str, code: str) -> ApiError:
    """Return the error of work refused for now (503)."""
    return ApiError(503, message, code=code, headers=RETRY_AFTER)


def translate(error: Exception) -> ApiError:
    """Return the answer to any exception of a request."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return _validation(error)
    if isinstance(error, web.HTTPException):
        return ApiError(error.status, error.text or error.reason, code=error.reason.lower().replace(" ", "_"))
    if isinstance(error, PeerFailedError):
        headers = RETRY_AFTER if error.status == 503 else {}
        return ApiError(error.status, str(error), code=error.code, headers=headers)
    for kinds, status, code in TABLE:
        if isinstance(error, kinds):
            headers = RETRY_AFTER if status == 503 else {}
            return ApiError(status, str(error) or type(error).__name__, code=code, headers=headers)
    log.error("request failed", exc_info=error)
    return ApiError(500, f"internal error: {type(error).__name__}", code="internal_error")


def explain(error: BaseException) -> PeerFailedError:
    """Return the error for the other half of a failed request, so that it answers the same."""
    if not isinstance(error, Exception):
        return PeerFailedError("the request was aborted")
    known = translate(error)
    return PeerFailedError(str(known), status=known.status, code=known.code)


def _validation(error: ValidationError) -> ApiError:
    faults = error.errors(include_url=False, include_context=False)
    paths = [".".join(str(step) for step in fault["loc"]) for fault in faults]
    message = "; ".join(
        f"{path or 'body'} is {_short(fault['input'])}: {fault['msg'].removeprefix('Value error, ')}"
        for path, fault in zip(paths, faults, strict=True)
    )
    return invalid(message, param=paths[0] or None)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception of a handler into its answer."""
    try:
        return await handler(request)
    except Exception as error:  # noqa: BLE001 - the last line of defence of one request
        return translate(error).response()

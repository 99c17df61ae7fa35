"""JSON bodies from strangers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import web


class BodyError(ValueError):
    """The body is not JSON (HTTP 400)."""


async def read_json(request: web.Request) -> Any:
    """Return the JSON value of a request's body, whatever its content type says.

    Raises:
        BodyError: There is none.
        HTTPRequestEntityTooLarge: The body is above the application's limit.
    """
    data = await request.read()
    try:
        return json.loads(data)
    except RecursionError as error:
        raise BodyError("the body is nested too deeply") from error
    except ValueError as error:
        raise BodyError(f"the body is not JSON: {error}") from error

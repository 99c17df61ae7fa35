from __future__ import annotations

import json

import pytest

from epd_operator.kube import ApiError, Conflict, Gone, Invalid, NotFound, ServerError, StatusError, TooManyRequests
from epd_operator.kube.error import MESSAGE_LIMIT, from_answer


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Invalid),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (422, Invalid),
        (429, TooManyRequests),
        (500, ServerError),
        (503, ServerError),
        (418, StatusError),
    ],
)
def test_statuses(status: int, kind: type[StatusError]) -> None:
    error = from_answer("GET /x", status, b"", {})
    assert type(error) is kind
    assert isinstance(error, ApiError)
    assert str(error) == f"GET /x: HTTP {status}"


def test_the_status_object_is_read() -> None:
    body = json.dumps({"kind": "Status", "reason": "AlreadyExists", "message": "it is there"}).encode()
    error = from_answer("POST /x", 409, body, {})
    assert (error.reason, error.message) == ("AlreadyExists", "it is there")


def test_a_proxys_page_is_cut() -> None:
    error = from_answer("GET /x", 502, b"<html>" + b"x" * 10_000, {})
    assert len(error.message) == MESSAGE_LIMIT


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"Retry-After": "3"}, {}, 3.0),
        ({}, {"retryAfterSeconds": 2}, 2.0),
        ({}, {}, 1.0),
        ({"Retry-After": "x"}, {}, 1),
    ],
)
def test_the_wait_that_the_server_asks_for(headers: dict[str, str], details: dict[str, int], seconds: float) -> None:
    body = json.dumps({"kind": "Status", "details": details}).encode()
    error = from_answer("GET /x", 429, body, headers)
    assert isinstance(error, TooManyRequests)
    assert error.retry_after == seconds


def test_an_answer_that_is_no_object_does_not_confuse() -> None:
    assert from_answer("GET /x", 500, b"[1]", {}).message == "[1]"


def test_the_causes_of_a_refusal_are_kept() -> None:
    details = {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}
    error = from_answer("PATCH /x", 403, json.dumps({"kind": "Status", "details": details}).encode(), {})
    assert error.causes == {"NamespaceTerminating"}

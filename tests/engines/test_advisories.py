"""Advisories are data: read with every fault at once, matched on what the engine gets, and never a refusal."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from epd_operator.engines.advisories import AdvisoryError, read
from epd_operator.engines.validation import validate
from tools.corpus.field_cases import field_cases

MADE_UP = {
    "id": "host-cache-hangs",
    "versions": ["0.5.23"],
    "args": {"enable-hierarchical-cache": True, "chunked-prefill-size": 16384},
    "says": "the host cache hangs with chunks of 16K",
    "fix": "lower chunked-prefill-size to 8192, or use 0.5.24",
    "source": "a made-up report",
}


def _spec(**args: Any) -> dict[str, Any]:
    document = copy.deepcopy(next(case.document for case in field_cases() if case.name == "base-0.5.23"))
    document["spec"]["roles"]["prefill"]["args"].update(args)
    return document


def _advise(document: dict[str, Any], row: dict[str, Any]) -> list[Any]:
    judged = validate(document, advisories=read([row]))
    assert judged.accepted
    return [finding for finding in judged.findings if finding.rule == row["id"]]


def test_an_advisory_warns_of_version_feature_and_way_out() -> None:
    (actual,) = _advise(_spec(**{"enable-hierarchical-cache": True, "chunked-prefill-size": 16384}), MADE_UP)
    assert (actual.severity, actual.role, actual.acknowledged) == ("warning", "prefill", False)
    for word in ("0.5.23", "enable-hierarchical-cache", "8192"):
        assert word in str(actual)


@pytest.mark.parametrize(
    "args",
    [
        {"enable-hierarchical-cache": True, "chunked-prefill-size": 8192},
        {"chunked-prefill-size": 16384},
        {"enable-hierarchical-cache": False, "chunked-prefill-size": 16384},
    ],
)
def test_an_advisory_is_silent_elsewhere(args: dict[str, Any]) -> None:
    assert not _advise(_spec(**args), MADE_UP)


def test_the_default_of_the_parser_counts_as_given() -> None:
    row = {**MADE_UP, "args": {"enable-hierarchical-cache": False}}
    assert {item.role for item in _advise(_spec(), row)} == {"prefill", "decode"}


def test_an_advisory_can_be_acknowledged() -> None:
    document = _spec(**{"enable-hierarchical-cache": True, "chunked-prefill-size": 16384})
    document["spec"]["engine"]["acknowledge"] = ["host-cache-hangs"]
    (actual,) = _advise(document, MADE_UP)
    assert actual.acknowledged


def test_an_advisory_for_another_version_or_platform_is_silent() -> None:
    document = _spec(**{"enable-hierarchical-cache": True, "chunked-prefill-size": 16384})
    assert not _advise(document, {**MADE_UP, "versions": ["0.5.24"]})
    assert not _advise(document, {**MADE_UP, "platforms": ["hip-gfx950"]})


def test_every_fault_of_every_row_is_named() -> None:
    rows = [{"id": "Not An Id", "versions": [0.5], "surprise": 1}, "text", MADE_UP, MADE_UP]
    with pytest.raises(AdvisoryError) as caught:
        read(rows)
    lines = str(caught.value)
    for part in ("[0]['surprise']", "[0]['says']", "[0]['id']", "[0]['versions'][0]", "[1]"):
        assert part in lines
    with pytest.raises(AdvisoryError, match="host-cache-hangs is listed twice"):
        read([MADE_UP, MADE_UP])


def test_no_list_is_no_advisory() -> None:
    assert read(None) == ()
    with pytest.raises(AdvisoryError, match="list"):
        read({"id": "x"})


@pytest.mark.parametrize("taken", ["structure", "flag-unknown", "gpu-too-few"])
def test_an_advisory_cannot_take_the_id_of_a_rule(taken: str) -> None:
    with pytest.raises(AdvisoryError, match=f"{taken} is the id of a rule: rename it"):
        read([{**MADE_UP, "id": taken}])

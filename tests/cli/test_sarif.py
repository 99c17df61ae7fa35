"""The SARIF that code hosts read: what the standard demands of the parts that are used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from epd_operator.cli.sarif import UNREADABLE

if TYPE_CHECKING:
    from tests.support.cli import Epd, Write

POSITIVE = {"type": "integer", "minimum": 1}
MESSAGE = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
LOCATION = {
    "type": "object",
    "required": ["physicalLocation"],
    "additionalProperties": False,
    "properties": {
        "message": MESSAGE,
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation"],
            "additionalProperties": False,
            "properties": {
                "artifactLocation": {
                    "type": "object",
                    "required": ["uri"],
                    "additionalProperties": False,
                    "properties": {"uri": {"type": "string", "pattern": r"^[!-~]+$"}},
                },
                "region": {
                    "type": "object",
                    "required": ["startLine"],
                    "additionalProperties": False,
                    "properties": dict.fromkeys(("startLine", "startColumn", "endLine", "endColumn"), POSITIVE),
                },
            },
        },
    },
}
RULE = {
    "type": "object",
    "required": ["id"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "shortDescription": MESSAGE,
        "fullDescription": MESSAGE,
        "help": MESSAGE,
        "defaultConfiguration": {"type": "object", "properties": {"level": {"enum": ["error", "warning"]}}},
    },
}
RESULT = {
    "type": "object",
    "required": ["message"],
    "additionalProperties": False,
    "properties": {
        "ruleId": {"type": "string"},
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": MESSAGE,
        "locations": {"type": "array", "items": LOCATION},
        "relatedLocations": {"type": "array", "items": LOCATION, "uniqueItems": True},
        "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
        "properties": {"type": "object"},
    },
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool"],
                "additionalProperties": False,
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {"rules": {"type": "array", "items": RULE, "uniqueItems": True}},
                            }
                        },
                    },
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "invocations": {
                        "type": "array",
                        "items": {"type": "object", "required": ["executionSuccessful"]},
                    },
                    "results": {"type": "array", "items": RESULT},
                },
            },
        },
    },
}
"""What SARIF 2.1.0 (OASIS, sections 3.13 to 3.51) says about the properties that `epd` writes, and no others."""


@pytest.fixture
def log(epd: Epd, write: Write, bad: str) -> dict[str, Any]:
    names = [write(bad, "in/ä b.yaml"), write("a:\n\t- 1", "c.yaml")]
    answer = epd("validate", "-o", "sarif", *names)
    assert answer.status == 2
    actual: dict[str, Any] = json.loads(answer.out)
    return actual


def test_it_is_sarif(log: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(SARIF)
    jsonschema.validate(log, SARIF)


def test_every_result_names_a_rule_of_the_run(log: dict[str, Any]) -> None:
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert len(run["results"]) > len(rules) > 1
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


def test_regions_are_where_the_fields_stand(log: dict[str, Any], bad: str) -> None:
    (run,) = log["runs"]
    (result,) = [result for result in run["results"] if result["ruleId"] == "flag-owned"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "in/%C3%A4%20b.yaml"
    region = place["region"]
    line = bad.splitlines()[region["startLine"] - 1]
    assert line[region["startColumn"] - 1 : region["endColumn"] - 1] == "port: 1"


def test_what_cannot_be_read_is_a_result_too(log: dict[str, Any]) -> None:
    (run,) = log["runs"]
    assert run["invocations"] == [{"executionSuccessful": False}]
    (result,) = [result for result in run["results"] if result["ruleId"] == UNREADABLE]
    assert result["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "c.yaml"},
        "region": {"startLine": 2, "startColumn": 1},
    }


def test_a_finding_keeps_its_fingerprint_when_it_moves(epd: Epd, write: Write, bad: str) -> None:
    def prints(text: str) -> list[str]:
        actual = json.loads(epd("validate", "-o", "sarif", write(text)).out)
        return [result["partialFingerprints"]["epdFinding/v1"] for result in actual["runs"][0]["results"]]

    before = prints(bad)
    assert len(set(before)) == len(before)
    assert prints(f"# moved\n\n{bad}") == before


def test_absolute_paths_are_file_addresses(epd: Epd, write: Write, bad: str, tmp_path: Any) -> None:
    write(bad)
    actual = json.loads(epd("validate", "-o", "sarif", str(tmp_path / "deploy.yaml")).out)
    place = actual["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == f"file://{tmp_path}/deploy.yaml"


def test_nothing_found_is_an_empty_run(epd: Epd, write: Write) -> None:
    actual = json.loads(epd("validate", "-o", "sarif", write()).out)
    jsonschema.validate(actual, SARIF)
    assert actual["runs"][0]["results"] == []


def test_a_rule_is_described_by_itself_and_not_by_what_it_found(epd: Epd, write: Write, bad: str) -> None:
    gpus = bad.replace("      replicas: two\n", "      resources: {gpu: 3}\n").replace(", port: 1", "")
    actual = json.loads(epd("validate", "-o", "sarif", write(gpus)).out)
    rules = {rule["id"]: rule for rule in actual["runs"][0]["tool"]["driver"]["rules"]}
    assert "(needed)" in rules["gpu-too-few"]["fullDescription"]["text"] or not any(
        char.isdigit() for char in rules["gpu-too-few"]["fullDescription"]["text"]
    )
    assert rules["flag-unknown"]["fullDescription"]["text"] == "this version does not have the flag"

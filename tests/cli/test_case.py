"""`epd validate` on command lines, one and many."""

from __future__ import annotations

import io
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.cli import Epd, Write


def findings(epd: Epd, *words: str) -> tuple[bool, set[str]]:
    answer = epd("validate", "-o", "json", *words)
    (document,) = json.loads(answer.out)["documents"]
    assert answer.status == (0 if document["accepted"] else 1)
    return document["accepted"], {finding["rule"] for finding in document["findings"]}


def test_a_command_line_is_judged(epd: Epd) -> None:
    answer = epd("validate", "--platform", "cuda-sm100", "--", "--tp-size", "4", "--no-such-flag", "1")
    assert answer.status == 1
    assert answer.out.startswith("command line: refused: 1 error (SGLang 0.5.23 on cuda-sm100)\n")
    assert "error[flag-unknown]" in answer.out
    assert "document" not in answer.out
    assert findings(epd, "--", "--tp-size", "4") == (True, set())


@pytest.mark.parametrize(
    ("role", "words", "expected"),
    [
        ("prefill", ["--tp-size", "4"], "prefill"),
        ("encode", ["--tp-size", "4", "--no-such-flag"], "encode"),
        ("decode", ["--disaggregation-mode", "decode", "--no-such-flag"], "decode"),
        ("aggregated", ["--no-such-flag"], "aggregated"),
        (None, ["--disaggregation-mode=prefill", "--no-such-flag"], "prefill"),
    ],
)
def test_a_role_that_the_flags_leave_open_is_added(epd: Epd, role: str | None, words: list[str], expected: str) -> None:
    given = ["--role", role] if role else []
    answer = epd("validate", "-o", "json", *given, "--", *words)
    (document,) = json.loads(answer.out)["documents"]
    assert {finding["role"] for finding in document["findings"]} <= {expected}
    assert "role-contradiction" not in {finding["rule"] for finding in document["findings"]}


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("decode", ["--disaggregation-mode", "prefill"]),
        ("aggregated", ["--disaggregation-mode", "prefill"]),
        ("prefill", ["--encoder-only"]),
        ("prefill", ["--disaggregation-mode", "null"]),
    ],
)
def test_a_role_against_the_flags_is_an_error(epd: Epd, role: str, words: list[str]) -> None:
    accepted, rules = findings(epd, "--role", role, "--", *words)
    assert not accepted
    assert "role-contradiction" in rules


def test_variables_count_however_they_are_given(epd: Epd, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def judge(version: str, platform: str, argv: Any, env: dict[str, str], **more: Any) -> Any:
        seen.append(env)
        return original(version, platform, argv, env, **more)

    from epd_operator.engines import validation  # noqa: PLC0415 - to be replaced

    original = validation.validate_command_line
    monkeypatch.setattr(validation, "validate_command_line", judge)
    epd("validate", "--env", "B=2", "--env", "C=3", "--", "A=1 B=1 python3 -m sglang.launch_server --tp 4")
    assert seen == [{"A": "1", "B": "2", "C": "3"}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env", "x", "--", "--tp"], "NAME=VALUE"),
        (["--", "vllm serve"], "SGLang's program"),
        (["--engine-version", "0.4.0", "--", "--tp"], "--engine-version"),
        (["--engine-version", "0.4.0", "--cases", "x"], "--engine-version"),
        (["--cases", "missing.jsonl"], "cannot be read"),
    ],
)
def test_what_cannot_be_judged_is_told(epd: Epd, words: list[str], message: str) -> None:
    answer = epd("validate", *words)
    assert (answer.status, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.startswith("epd: ")


ROWS = [
    {"id": "a", "platform": "cuda-sm90", "argv": ["--tp", "4"], "env": {}},
    {"id": "b", "platform": "hip-gfx950", "argv": ["--tp", "4", "--no-such-flag"], "env": {"A": "1"}},
    {"id": 3, "platform": "cuda-sm100", "argv": ["--tp", "4"], "config": {"model_type": "deepseek_v41"}},
    {"argv": []},
]


def lines(rows: list[Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_rows_in_rows_out(epd: Epd, write: Write) -> None:
    answer = epd("validate", "--cases", write(lines(ROWS) + "\n", "cases.jsonl"))
    actual = [json.loads(line) for line in answer.out.splitlines()]
    assert (answer.status, answer.err) == (1, "")
    assert [(row["id"], row["accepted"]) for row in actual] == [("a", True), ("b", False), (3, True), (4, True)]
    (finding,) = actual[1]["findings"]
    assert (finding["rule"], finding["severity"], finding["platform"]) == ("flag-unknown", "error", "hip-gfx950")
    assert finding["decidedBy"]


def test_rows_come_from_standard_input(epd: Epd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(ROWS[:1]).encode())))
    answer = epd("validate", "--cases", "-")
    assert (answer.status, json.loads(answer.out)["accepted"]) == (0, True)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "must be an object"),
        ("{}", "has no argv"),
        ('{"argv": "--tp 4"}', "argv must be a list of strings"),
        ('{"argv": [1]}', "argv must be a list of strings"),
        ('{"argv": [], "env": {"A": 1}}', "env must be an object of strings"),
        ('{"argv": [], "config": 1}', "config must be an object"),
        ('{"argv": [], "config": {"model_type": 3}}', "config.model_type must be a string"),
        ('{"argv": [], "config": {"text_config": "x"}}', "config.text_config must be an object"),
        ('{"argv": [], "config": {"text_config": {"o_groups": "8"}}}', "config.text_config.o_groups must be a whole"),
        ('{"argv": [], "config": {"text_config": {"o_groups": true}}}', "config.text_config.o_groups must be a whole"),
        ('{"argv": [], "platform": "abacus"}', "use one of cuda-sm90"),
        ('{"argv": [], "platform": ["x"]}', "platform must be a string"),
    ],
    ids=lambda part: part[:25],
)
def test_a_bad_row_is_told_and_the_others_are_judged(epd: Epd, write: Write, row: str, message: str) -> None:
    name = write(f"{row}\n{lines(ROWS[:1])}", "cases.jsonl")
    answer = epd("validate", "--cases", name)
    first, second = (json.loads(line) for line in answer.out.splitlines())
    assert answer.status == 2
    assert first["error"].startswith("line 1: ")
    assert message in first["error"]
    assert message in answer.err
    assert second == {"id": "a", "accepted": True, "findings": []}


def test_a_row_of_another_encoding_is_told_and_the_others_are_judged(epd: Epd, write: Write) -> None:
    rows = b'{"argv": ["\xff"]}\n' + lines(ROWS[:1]).encode()
    answer = epd("validate", "--cases", write(rows, "cases.jsonl"))
    first, second = (json.loads(line) for line in answer.out.splitlines())
    assert answer.status == 2
    assert "UTF-8" in first["error"]
    assert second["accepted"]


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ('{"id": "mine", "argv": [1]}', "mine"),
        ('{"id": 7, "argv": [], "env": 3}', 7),
        ('{"id": {"a": [1]}, "argv": []}', {"a": [1]}),
        ('{"id": NaN, "argv": []}', 1),
        ('{"id": {"a": Infinity}, "argv": []}', 1),
    ],
)
def test_every_answer_is_json_under_the_id_of_its_row(epd: Epd, write: Write, row: str, name: Any) -> None:
    answer = epd("validate", "--cases", write(f"{row}\n", "cases.jsonl"))

    def refuse(constant: str) -> Any:
        pytest.fail(f"no JSON: {constant}")

    assert json.loads(answer.out, parse_constant=refuse)["id"] == name


def test_strict_refuses_rows_with_warnings(epd: Epd, write: Write) -> None:
    rows = [{"id": "new", "argv": ["--brand-new-flag", "1"]}]
    name = write(lines(rows), "cases.jsonl")
    newer = ["--engine-version", "0.5.99", "--cases", name]
    answer = epd("validate", *newer)
    row = json.loads(answer.out)
    assert (answer.status, row["accepted"], row["approximate"]) == (0, True, True)
    answer = epd("validate", "--strict", *newer)
    assert (answer.status, json.loads(answer.out)["accepted"]) == (1, False)


def test_a_version_without_rules_is_judged_approximately_and_says_so(epd: Epd) -> None:
    words = ["--engine-version", "0.5.99", "--", "--tp-size", "4", "--brand-new-flag", "1"]
    answer = epd("validate", *words)
    head = answer.out.splitlines()[0]
    assert answer.status == 0
    assert head.endswith("(SGLang 0.5.99 on cuda-sm90, approximately: by the rules of 0.5.23)")
    assert "warning[flag-unknown]" in answer.out
    (document,) = json.loads(epd("validate", "-o", "json", *words).out)["documents"]
    assert (document["approximate"], document["askedVersion"], document["engineVersion"]) == (True, "0.5.99", "0.5.23")
    assert epd("validate", "--", "--tp-size", "4", "--brand-new-flag", "1").status == 1


def test_a_thousand_lines_take_seconds(epd: Epd, write: Write) -> None:
    rows = [{"id": number, "argv": ["--tp", "4", "--page-size", str(number)]} for number in range(1000)]
    name = write(lines(rows), "cases.jsonl")
    start = time.process_time()
    epd("validate", "--cases", name)
    assert time.process_time() - start < 10

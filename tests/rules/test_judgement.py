"""What a finding shows and says: places, values, ways out; and which findings stay out of the way of others."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest

from epd_operator.admission import policy
from epd_operator.engines import table
from epd_operator.engines.validation import validate, validate_command_line
from epd_operator.rules.finding import Finding, Side
from epd_operator.rules.rule import BUILT_IN
from tools.corpus.field_cases import field_cases

SGLANG = table.RULESETS["SGLang"]
OVERRIDABLE = sorted({rule.id for rule in SGLANG.rules if rule.overridable})
FIXED = sorted({*BUILT_IN, *(rule.id for rule in SGLANG.rules)} - set(OVERRIDABLE))


def spec(patch: dict[str, Any], version: str = "0.5.23") -> dict[str, Any]:
    document = copy.deepcopy(next(case.document for case in field_cases() if case.name == "base-0.5.23"))
    document["spec"]["engine"]["version"] = version
    _merge(document["spec"], patch)
    return document


def _merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def findings_of(patch: dict[str, Any], rule: str) -> list[Finding]:
    return [finding for finding in validate(spec(patch)).findings if finding.rule == rule]


def prefill(**args: Any) -> dict[str, Any]:
    return {"roles": {"prefill": {"args": {name.replace("_", "-"): value for name, value in args.items()}}}}


def test_what_cannot_be_overridden_is_an_error_for_judgement_and_policy() -> None:
    reported = findings_of({"engine": {"acknowledge": FIXED[:64]}}, "acknowledge-unknown")
    assert [finding.sides for finding in reported] == [
        (Side(f"spec.engine.acknowledge[{place}]", rule),) for place, rule in enumerate(FIXED[:64])
    ]
    assert {(finding.severity, finding.says) for finding in reported} == {("error", "cannot be overridden")}
    assert {*BUILT_IN} & {*FIXED[:64]}
    assert [rule for rule in FIXED if f"'{rule}'" not in _acknowledge_of_policy()] == []


@cache
def _acknowledge_of_policy() -> str:
    variables = policy.policy(SGLANG)["spec"]["variables"]
    (text,) = (entry["expression"] for entry in variables if entry["name"] == "acknowledge")
    return str(text)


def test_an_id_that_nothing_has_is_a_warning_and_no_matter_of_the_policy() -> None:
    near = OVERRIDABLE[0].upper()[:-1]
    first, second = findings_of({"engine": {"acknowledge": [OVERRIDABLE[1], "zzz", near]}}, "acknowledge-unknown")
    assert (first.severity, second.severity) == ("warning", "warning")
    assert [side.field for finding in (first, second) for side in finding.sides] == [
        "spec.engine.acknowledge[1]",
        "spec.engine.acknowledge[2]",
    ]
    assert "did you mean" not in first.fix
    assert f"did you mean {OVERRIDABLE[0]}?" in second.fix
    assert not any(f"'{rule}'" in _acknowledge_of_policy() for rule in OVERRIDABLE)


def test_what_can_be_acknowledged_here_is_said_and_nothing_else() -> None:
    patch = {"engine": {"acknowledge": ["flag-value"]}, **prefill(mem_fraction_static=2.0)}
    overridable = [finding.rule for finding in validate(spec(patch)).errors if finding.overridable]
    (finding,) = findings_of(patch, "acknowledge-unknown")
    assert overridable
    assert finding.fix == f"remove it; what can be acknowledged here: {', '.join(sorted(set(overridable)))}"


def test_a_derived_quantity_stands_behind_everything_that_settles_it() -> None:
    for finding in validate(spec(prefill(tp_size=8, dp_size=4, enable_dp_attention=True))).findings:
        shown = [side for side in finding.sides if side.form == "derived"]
        for side in shown:
            assert side.written is None
            assert str(side) == f"so {side.field} = {side.effective}"
            assert finding.sides.index(side) > 0


def test_only_a_flag_s_own_resolved_form_is_what_it_becomes() -> None:
    seen = 0
    for case in field_cases():
        for finding in validate(case.document).findings:
            for side in finding.sides:
                if "which becomes" in str(side):
                    seen += 1
                    assert side.effective != side.written
                    assert type(side.effective) in {type(side.written), float, int}, str(finding)
    assert seen


def test_no_side_shows_a_flag_of_the_operator_under_a_field_that_does_not_hold_it() -> None:
    for rule in SGLANG.rules:
        assert rule.sides
    line = " ".join(str(side) for case in field_cases() for f in validate(case.document).findings for side in f.sides)
    assert "spec.roles.prefill = prefill" not in line
    assert "spec.roles.prefill = 30000" not in line
    assert "spec.roles.encode = false" not in line


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--help", "--help"),
        ("-h", "-h"),
        ("--brand-new", "--brand-new"),
        ("--brand-new 4", "--brand-new"),
        ("--tp-size", "--tp-size"),
        ("--cuda-graph-bs", "--cuda-graph-bs"),
        ("--tp-size a", "--tp-size = a"),
        ("stray", "command line = stray"),
    ],
)
def test_a_flag_that_was_given_is_not_called_unset(words: str, shown: str) -> None:
    judged = validate_command_line("0.5.23", "cuda-sm90", words.split(), {})
    assert [str(side) for finding in judged.findings for side in finding.sides] == [shown]


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"roles": {"prefill": {"resources": {"rdma": "1"}}}}, "spec.roles.prefill.resources.rdma"),
        ({"roles": {"prefill": {"resources": {"memory": "-4Gi"}}}}, "spec.roles.prefill.resources.memory"),
        ({"roles": {"decode": {"nodes": 0}}}, "spec.roles.decode.nodes"),
        ({"roles": {"prefill": {"resources": "much"}}}, "spec.roles.prefill.resources"),
    ],
)
def test_what_the_schema_refuses_is_told_once(patch: dict[str, Any], field: str) -> None:
    judged = validate(spec(patch))
    assert [(finding.rule, finding.sides[0].field) for finding in judged.findings] == [("structure", field)]


def test_what_does_not_rest_on_a_refused_field_is_still_told() -> None:
    patch = {"roles": {"decode": {"nodes": 0}, "prefill": {"args": {"tp-sise": 4}}}}
    assert {finding.rule for finding in validate(spec(patch)).findings} == {"structure", "flag-unknown"}


@pytest.mark.parametrize(
    ("flag", "value", "shown", "fix"),
    [
        ("tp-size", "4", "'4'", "write 4 without quotes"),
        ("tp-size", 4.0, "4", "write 4"),
        ("tp-size", "many", "'many'", "write a whole number without quotes"),
        ("mem-fraction-static", "0.8", "'0.8'", "write 0.8 without quotes"),
        ("enable-dp-attention", "yes", "'yes'", "write true without quotes"),
        ("enable-dp-attention", 1, "1", "write true or false"),
        ("load-format", "atuo", "'atuo'", "did you mean auto?"),
        ("log-level", "loud", "'loud'", "write a name such as info"),
        ("tokenizer-path", 4, "4", 'quote it: "4"'),
        ("tokenizer-path", True, "true", 'quote it: "true"'),
        ("max-total-tokens", "1K", "'1K'", 'write a whole number, or a text such as "8k"'),
        ("cuda-graph-bs-decode", ["1"], "['1']", "write 1 without quotes"),
        ("cuda-graph-bs-decode", [], "[]", "add a value, or leave the flag out"),
        ("tp-size", [4], "[4]", "give one value, without brackets"),
        ("tp-size", None, "null", "give it a value, or leave the flag out"),
    ],
)
def test_the_way_out_of_a_wrong_value_is_the_right_one(flag: str, value: Any, shown: str, fix: str) -> None:
    (finding,) = findings_of({"roles": {"prefill": {"args": {flag: value}}}}, "flag-value")
    assert finding.fix == fix
    assert str(finding).startswith(f"[flag-value] spec.roles.prefill.args.{flag} = {shown}: ") or value is None


@pytest.mark.parametrize(
    ("patch", "says", "fix"),
    [
        ({"env": {"A": 1}}, "must be a string", 'quote it, as in "1"'),
        ({"resources": {"rdma": "1"}}, "must be a valid integer", "write 1 without quotes"),
        ({"hostNetwork": "true"}, "must be true or false", "write true without quotes"),
        ({"resources": {"memory": "512GB"}}, "must be an amount above zero", "512Gi, or 512G for powers of ten"),
    ],
)
def test_a_value_of_the_wrong_type_is_answered_with_how_to_write_it(patch: dict[str, Any], says: str, fix: str) -> None:
    (finding,) = findings_of({"roles": {"prefill": patch}}, "structure")
    assert finding.says.startswith(says)
    assert finding.fix.endswith(fix) or finding.fix.endswith(f"write {fix}")


def test_a_variable_given_twice_is_named() -> None:
    twice = {"env": {"A": "1", "B": "2"}, "secretEnv": {name: {"name": "s", "key": "k"} for name in ("A", "B", "C")}}
    places = [
        str(side) for finding in findings_of({"roles": {"prefill": twice}}, "structure") for side in finding.sides
    ]
    assert places == ["spec.roles.prefill.secretEnv.A", "spec.roles.prefill.secretEnv.B"]


@pytest.mark.parametrize(
    ("flag", "rule", "fix"),
    [
        ("api-key", "flag-owned", "set spec.router.apiKeySecret instead"),
        ("language-only", "flag-owned", "it belongs to spec.roles.encode"),
        (
            "no-enable-decoder-swa-bounded-replay",
            "flag-unknown",
            'remove it; set spec.roles.prefill.decoderReplay to "Off"',
        ),
        ("no-enable-metrics", "flag-unknown", "metrics are always on"),
        ("no-enable-dp-attention", "flag-unknown", "write enable-dp-attention: false"),
        ("model", "flag-unknown", "set spec.model.path instead"),
        ("api-keys", "flag-unknown", "set spec.router.apiKeySecret instead"),
    ],
)
def test_advice_leads_to_no_flag_of_the_operator_s(flag: str, rule: str, fix: str) -> None:
    (finding,) = findings_of({"roles": {"prefill": {"args": {flag: True}}}}, rule)
    assert finding.fix.endswith(fix)
    assert "did you mean" not in finding.fix

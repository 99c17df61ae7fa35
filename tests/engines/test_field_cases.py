"""What people really hit is refused or warned of before a pod exists, and its near twin is accepted."""

from __future__ import annotations

import copy

import pytest

from epd_operator.engines.validation import validate
from tools.corpus.field_cases import FieldCase, field_cases


@pytest.mark.parametrize("case", field_cases(), ids=lambda case: case.name)
def test_field_case(case: FieldCase) -> None:
    judgement = validate(case.document)
    findings = "\n".join(str(finding) for finding in judgement.findings) or "(nothing)"
    errors = {finding.rule for finding in judgement.errors}
    warnings = {finding.rule for finding in judgement.findings if finding.severity == "warning"}
    assert bool(case.refused) == bool(errors), findings
    assert set(case.refused) <= errors, findings
    assert set(case.warned) <= warnings, findings
    assert not set(case.quiet) & (errors | warnings), findings
    for word in case.says:
        assert word in findings


@pytest.mark.parametrize("case", field_cases(), ids=lambda case: case.name)
def test_findings_name_place_rule_and_way_out(case: FieldCase) -> None:
    for finding in validate(case.document).findings:
        assert finding.sides
        assert all(side.field for side in finding.sides)
        assert finding.says
        assert finding.fix or finding.rule in {"structure", "engine-version"}
        assert str(finding.rule) in str(finding)


def test_names_are_unique() -> None:
    names = [case.name for case in field_cases()]
    assert len(set(names)) == len(names)


def test_a_variable_that_decides_a_rule_must_be_readable() -> None:
    document = copy.deepcopy(next(case.document for case in field_cases() if case.name == "base-0.5.23"))
    secret = {"name": "settings", "key": "mode"}
    document["spec"]["roles"]["decode"]["secretEnv"] = {"SGLANG_RAGGED_VERIFY_MODE": secret, "HF_TOKEN": secret}
    (error,) = validate(document).errors
    assert error.rule == "variable-secret"
    assert "set SGLANG_RAGGED_VERIFY_MODE in env" in str(error)

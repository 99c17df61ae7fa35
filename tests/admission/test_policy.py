"""The policies' shape: within the API server's limits, and blind in few places only.

What they admit and refuse is asked of a real API server in e2e/tests/test_admission.py.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml

from epd_operator.admission import flags, manifest, policy
from epd_operator.engines import table
from epd_operator.rules import judgement
from tests.support.kubernetes import OLDEST, require_known

if TYPE_CHECKING:
    from epd_operator.rules.rule import Rule
    from epd_operator.rules.ruleset import Ruleset

ROOT = Path(__file__).parents[2]
CODE_POINTS = 100_000
"""Of an expression: the limit of the API server's CEL parser."""
NESTING = 200
"""Of parentheses and choices: the parser stops at 250."""
OBJECT = 1_000_000
"""Bytes of an object: etcd takes 1.5 MiB."""


@cache
def policies() -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in policy.policies()}


def expressions() -> dict[str, str]:
    actual: dict[str, str] = {}
    for name, one in policies().items():
        for part in ("variables", "matchConditions"):
            actual |= {f"{name}/{entry['name']}": entry["expression"] for entry in one["spec"][part]}
        for entry in one["spec"]["validations"]:
            actual |= {f"{name}/validation": entry["expression"], f"{name}/message": entry["messageExpression"]}
    return actual


def bare(expression: str) -> str:
    """An expression without what is inside its strings."""
    return re.sub(r"'(\\.|[^'\\])*'", "''", expression)


def test_there_is_one_for_each_engine_and_one_for_versions() -> None:
    assert set(policies()) == {"engine-version", *(name.lower() for name in table.RULESETS)}


def test_no_message_spells_a_whole_role() -> None:
    """A role is an object, of which CEL has no text."""
    shown = {name: text for name, text in expressions().items() if name.endswith("_shown")}
    assert shown
    role = re.compile(r"dyn\(variables\.spec_roles_(encode|prefill|decode)\)")
    assert not [name for name, text in shown.items() if role.search(text)]


def test_every_expression_is_within_the_limits_of_the_parser() -> None:
    for name, text in expressions().items():
        assert len(text) < CODE_POINTS, name
        depth = deepest = 0
        for character in bare(text):
            depth += (character in "([{") - (character in ")]}")
            deepest = max(deepest, depth)
        assert depth == 0, name
        assert deepest + max((line.count(" ? ") for line in bare(text).splitlines()), default=0) < NESTING, name


def test_every_object_fits_into_the_store() -> None:
    for name, one in policies().items():
        assert len(json.dumps(one).encode()) < OBJECT, name


def test_every_variable_is_defined_once_before_it_is_used() -> None:
    for name, one in policies().items():
        known: set[str] = set()
        for entry in one["spec"]["variables"]:
            assert set(re.findall(r"variables\.(\w+)", bare(entry["expression"]))) <= known, f"{name}/{entry['name']}"
            assert entry["name"] not in known
            known.add(entry["name"])


def test_a_status_or_an_unchanged_spec_is_never_asked_about() -> None:
    for one in policies().values():
        (rule,) = one["spec"]["matchConstraints"]["resourceRules"]
        assert rule["resources"] == ["deepseekv41deployments"]
        assert rule["operations"] == ["CREATE", "UPDATE"]
        conditions = {entry["name"]: entry["expression"] for entry in one["spec"]["matchConditions"]}
        assert conditions["spec-is-new"] == "request.operation == 'CREATE' || object.spec != oldObject.spec"
        assert conditions["object-stays"] == "!has(object.metadata.deletionTimestamp)"
        assert one["spec"]["failurePolicy"] == "Fail"


def test_no_line_break_gets_into_a_message() -> None:
    """The API server drops a message with one, and says the bare expression instead."""
    for name, text in expressions().items():
        for quoted in re.findall(r"'((?:\\.|[^'\\])*)'", text):
            assert "\\n" not in quoted or "/words" in name or name.endswith("/lines"), f"{name}: {quoted}"


def test_every_error_of_the_table_is_in_a_policy_unless_listed_as_unseen() -> None:
    for ruleset in table.RULESETS.values():
        text = json.dumps(policies()[ruleset.engine_type.lower()])
        unseen = policy.inexpressible(ruleset)
        for rule in ruleset.rules:
            judged = set(rule.roles) & {"prefill", "decode"}
            if rule.severity == "error" and any(_may_break(ruleset, rule, role) for role in judged):
                assert f".{rule.id}'" in text or rule.id in unseen, rule.id


def _may_break(ruleset: Ruleset, rule: Rule, role: str) -> bool:
    """Whether a spec can break the rule: some are about other checkpoints, or about flags that the operator sets."""
    folder = policy.folder_of(ruleset)
    return folder.fold(rule.when, role).expr is not folder.const(False)


def _ids(ruleset: Ruleset) -> set[str]:
    return {
        *flags.RULES,
        "variable-owned",
        "variable-secret",
        "acknowledge-unknown",
        *(rule.id for rule in ruleset.rules),
    }


@pytest.mark.parametrize("engine", table.RULESETS)
def test_at_most_a_tenth_of_the_rules_needs_what_cel_cannot_see(engine: str) -> None:
    ruleset = table.RULESETS[engine]
    unseen = policy.inexpressible(ruleset)
    assert set(unseen) <= _ids(ruleset)
    assert len(unseen) <= 0.1 * len(_ids(ruleset))
    assert all(unseen.values())


def test_the_rules_page_names_every_rule_that_a_policy_cannot_see_whole() -> None:
    page = (ROOT / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
    for ruleset in table.RULESETS.values():
        for rule, reason in policy.inexpressible(ruleset).items():
            section = page.split(f"### `{rule}`", 1)[1].split("### ", 1)[0]
            assert reason in " ".join(section.split())  # its lines are wrapped
        for rule in _ids(ruleset):
            assert f"### `{rule}`" in page


def test_the_ids_of_flag_findings_are_those_of_the_judgement() -> None:
    source = Path(judgement.__file__).read_text(encoding="utf-8")
    assert all(f'"{rule}"' in source for rule in flags.RULES)


def test_kubernetes_knows_every_field() -> None:
    documents = [
        document for text in manifest.texts().values() for document in yaml.load_all(text, Loader=yaml.CSafeLoader)
    ]
    assert len(documents) == 2 * len(policies())
    for document in documents:
        require_known(document, OLDEST)


def test_a_binding_denies_everywhere_and_belongs_to_its_policy() -> None:
    documents = list(yaml.safe_load_all(manifest.texts()[manifest.BINDINGS]))
    bound = {one["metadata"]["name"]: one["spec"] for one in documents}
    assert set(bound) == {f"epd-operator-{name}" for name in policies()}
    for name, spec in bound.items():
        assert spec == {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}},
        }


def test_every_message_is_cut_and_freed_of_line_breaks() -> None:
    for one in policies().values():
        variables = {entry["name"]: entry["expression"] for entry in one["spec"]["variables"]}
        assert variables["message"].endswith(r".replace('\n', ' ').replace('\r', ' ')")
        (validation,) = one["spec"]["validations"]
        assert validation["messageExpression"].startswith(f"size(bytes(variables.message)) <= {policy.MESSAGE} ? ")
        assert policy.MESSAGE < 5120


@pytest.mark.parametrize("actions", [["Deny"], ["Warn"], ["Audit"], ["Deny", "Audit"], ["Warn", "Audit"]])
def test_the_chart_takes_actions_that_go_together(actions: list[str]) -> None:
    schema = json.loads((ROOT / "charts" / "epd-operator" / "values.schema.json").read_text(encoding="utf-8"))
    allowed = schema["properties"]["admission"]["properties"]["actions"]
    jsonschema.validate(actions, allowed)
    for wrong in ([], [*actions, "Deny", "Warn"], [*actions, *actions]):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, allowed)


@pytest.mark.parametrize("engine", table.RULESETS)
def test_names_of_variables_are_judged_in_every_role(engine: str) -> None:
    ruleset = table.RULESETS[engine]
    variables = {entry["name"]: entry["expression"] for entry in policies()[engine.lower()]["spec"]["variables"]}
    for role, prefix in policy.PREFIX.items():
        text = variables[f"{prefix}_variables"]
        assert f"variables.{prefix}_variables" in variables["findings"]
        for name in ruleset.environment | ruleset.group_environment | ruleset.variables:
            assert f"'{name}'" in text, (role, name)

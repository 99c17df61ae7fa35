from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from epd_operator import api
from tests.support.corpus import Case, cases

KEYS = st.sampled_from(["metadata", "name", "spec", "engine", "type", "model", "roles", "prefill", "decode", "args"])


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_parse_gives_the_same_verdict_as_the_corpus(case: Case) -> None:
    if case.parse is None:
        parsed = api.parse(case.document)
        assert parsed.metadata.name == case.document["metadata"]["name"]
    else:
        with pytest.raises(api.SpecError) as refused:
            api.parse(case.document)
        assert case.parse in str(refused.value)
        assert len(refused.value.faults) == 1, "one mistake must be one fault"


def test_every_fault_is_reported_at_once_types_and_rules_together() -> None:
    document = {
        "metadata": {"name": "x" * 41},
        "spec": {
            "engine": {"type": "SGLang", "version": 1},
            "model": {"path": "a/b"},
            "roles": {"prefill": {"replicas": -1, "env": {"A-B": "x"}, "colour": "red"}},
        },
    }
    with pytest.raises(api.SpecError) as refused:
        api.parse(document)
    assert [fault.field for fault in refused.value.faults] == [
        "metadata.name",
        "spec.engine",
        "spec.engine",
        "spec.engine.version",
        "spec.model",
        "spec.roles.decode",
        "spec.roles.prefill.colour",
        "spec.roles.prefill.env",
        "spec.roles.prefill.replicas",
    ]


def test_a_fault_names_field_value_rule_and_way_out() -> None:
    assert str(api.Fault("spec.x", 3, "must be 4: use 4")) == "spec.x (is 3): must be 4: use 4"
    assert str(api.Fault("spec.x", None, "is required: add it")) == "spec.x: is required: add it"
    assert str(api.Fault("spec", None, "spec.x is required")) == "spec.x is required"


def test_a_long_value_is_cut() -> None:
    assert len(str(api.Fault("spec.x", "y" * 5000, "is too long"))) < 120


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_no_object_is_refused_with_words(document: Any) -> None:
    with pytest.raises(api.SpecError, match="must be an object"):
        api.parse(document)


@pytest.mark.parametrize("value", [None, {}, [None], [{}], [[1]]])
def test_a_flag_is_a_scalar_or_a_list_of_scalars(value: Any) -> None:
    document = {
        "metadata": {"name": "demo"},
        "spec": {
            "engine": {"type": "Reference", "version": "0.1"},
            "roles": {"prefill": {"args": {"page-size": value}}, "decode": {}},
        },
    }
    with pytest.raises(api.SpecError, match=r"prefill\.args\.page-size.*must be a string, a number, true, false"):
        api.parse(document)


def test_flags_keep_their_types() -> None:
    given = {"a": 1, "b": 1.5, "c": True, "d": "1", "e": [1, "1", False]}
    document = {
        "metadata": {"name": "demo", "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": []},
        "spec": {
            "engine": {"type": "Reference", "version": "0.1"},
            "roles": {"prefill": {"args": given}, "decode": {}},
        },
        "status": {"anything": True},
    }
    parsed = api.parse(document).spec.roles.prefill.args
    assert parsed == given
    assert [type(value) for value in parsed.values()] == [type(value) for value in given.values()]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100)
@given(st.dictionaries(KEYS, JSON, max_size=4), st.dictionaries(KEYS, JSON, max_size=6))
def test_no_document_makes_it_fail_in_any_other_way(document: dict[str, Any], spec: dict[str, Any]) -> None:
    with pytest.raises(api.SpecError) as refused:
        api.parse({**document, "spec": {**spec, "unknown": 1}})
    for fault in refused.value.faults:
        assert fault.field
        assert fault.message

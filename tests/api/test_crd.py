from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings

from epd_operator import api
from epd_operator.api import crd, parser, structure
from epd_operator.api.scalar import Base
from epd_operator.api.schema import schema_of
from tests.support.corpus import Case, cases

if TYPE_CHECKING:
    from collections.abc import Iterator


CHECKED_IN = Path(__file__).parents[2] / crd.FILE
QUIET = settings(max_examples=40, suppress_health_check=list(HealthCheck))


def strict(node: dict[str, Any]) -> dict[str, Any]:
    """The structural schema as plain JSON schema: unknown fields refused, int-or-string spelled out."""
    actual = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-")}
    if "properties" in node:
        actual["properties"] = {name: strict(child) for name, child in node["properties"].items()}
        actual["additionalProperties"] = False
    if isinstance(node.get("additionalProperties"), dict):
        actual["additionalProperties"] = strict(node["additionalProperties"])
    if "items" in node:
        actual["items"] = strict(node["items"])
    if node.get("x-kubernetes-int-or-string"):
        actual["type"] = ["integer", "string"]
    return actual


CHECKER = jsonschema.Draft202012Validator(strict(crd.schema()))


def test_the_checked_in_file_is_up_to_date() -> None:
    assert CHECKED_IN.read_text(encoding="utf-8") == crd.text()


def test_the_text_is_the_object() -> None:
    assert yaml.load(crd.text(), yaml.CSafeLoader) == crd.crd()


def test_the_schema_is_structural_and_bounded() -> None:
    assert structure.lint(crd.schema()) == []


@pytest.mark.parametrize(
    ("broken", "finding"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "keyword anyOf"),
        ({"type": "string", "maxLength": 1, "nullable": True}, "keyword nullable"),
        ({"type": "string", "maxLength": 1, "title": "X"}, "keyword title"),
        ({"const": "x", "type": "string", "maxLength": 1}, "keyword const"),
        ({"$ref": "#/$defs/X"}, r"keyword \$ref"),
        ({"type": "string", "maxLength": 1, "default": None}, "default null"),
        ({"type": "string"}, "string without maxLength"),
        ({"type": "string", "maxLength": 1, "pattern": "(?=a)a"}, "RE2"),
        ({"type": "string", "maxLength": 1, "pattern": r"(a)\1"}, "RE2"),
        ({"type": "string", "maxLength": 1, "pattern": r"\S"}, "dialects read differently"),
        ({"type": "integer"}, "integer without minimum"),
        ({"type": "array", "maxItems": 1, "items": {"type": "boolean"}}, "without list type"),
        ({"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "boolean"}}, "without maxItems"),
        ({"type": "array", "x-kubernetes-list-type": "map", "maxItems": 1, "items": {}}, "map without keys"),
        (
            {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "maxItems": 1,
                "items": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 1}}},
            },
            "list key name must be required",
        ),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "map without maxProperties"),
        ({"type": "object"}, "object without fields"),
        ({"description": "any"}, "has no type"),
        ({"type": "string", "x-kubernetes-int-or-string": True, "maxLength": 1}, "int-or-string excludes type"),
        ({"type": "boolean", "description": "x" * 201}, "description is longer"),
        ({"type": "boolean", "x-kubernetes-validations": [{"rule": "self"}]}, "has no message"),
        ({"type": "boolean"}, "has no description"),
        ({"type": "object", "required": ["b"], "properties": {"a": {"type": "boolean"}}}, "requires b"),
        (
            {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": {"type": "boolean"}},
            "exclude each other",
        ),
    ],
)
def test_the_linter_finds(broken: dict[str, Any], finding: str) -> None:
    actual = structure.lint({"type": "object", "properties": {"field": broken}})
    assert any(re.search(finding, line) and line.startswith(".field") for line in actual), actual


class Endless(Base):
    inner: Endless | None = None


def test_a_model_that_contains_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="Endless contains itself"):
        schema_of(Endless)


def test_printer_columns_and_names() -> None:
    spec = crd.crd()["spec"]
    version = spec["versions"][0]
    assert [column["name"] for column in version["additionalPrinterColumns"]] == [
        "Ready",
        "Reason",
        "Model",
        "Encode",
        "Prefill",
        "Decode",
        "Age",
    ]
    assert spec["names"]["shortNames"] == ["dsv41"]
    assert version["subresources"] == {"status": {}}
    assert version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"] == {"observedGeneration": -1}


def test_printer_columns_read_fields_that_exist() -> None:
    root = crd.schema()["properties"]
    for column in crd.crd()["spec"]["versions"][0]["additionalPrinterColumns"]:
        path = column["jsonPath"].removeprefix(".")
        if path.startswith("metadata"):
            continue
        node: dict[str, Any] = {"properties": root}
        for part in re.sub(r"\[[^]]*\]", "", path).split("."):
            node = node["properties"][part]
            node = node.get("items", node)
        assert node["type"] == "string", column


def test_replicas_have_no_schema_default() -> None:
    for path, node in nodes(crd.schema(), ""):
        assert not (path.endswith("replicas") and "default" in node), path


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_the_schema_gives_the_verdict_of_the_corpus(case: Case) -> None:
    broken = list(parser.broken_rules(case.document))
    errors = [error.message for error in CHECKER.iter_errors(case.document)]
    assert bool(broken or errors) == (case.server is not None), (broken, errors)


def nodes(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for part in ("items", "additionalProperties"):
        if isinstance(node.get(part), dict):
            yield from nodes(node[part], path)


OPEN = ("args", "affinity", "labelSelector")  # the schema cannot look inside these
NAMES = st.sampled_from(["a", "b-c", "weights"])
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    ".metadata": st.fixed_dictionaries({"name": st.from_regex(r"[a-z][a-z0-9]{0,39}", fullmatch=True)}),
    ".apiVersion": st.just("serving.epd.dev/v1alpha1"),
    ".kind": st.just("DeepSeekV41Deployment"),
    ".spec.model": st.sampled_from(
        [
            {},
            {"servedName": "toy"},
            {"path": "org/model", "revision": "abc"},
            {"path": "/model", "source": {"image": {"reference": "weights:1"}}},
            {"path": "/model", "source": {"persistentVolumeClaim": {"claimName": "w", "subPath": "a/.b/c"}}},
        ]
    ),
    ".spec.engine": st.sampled_from(
        [
            {"type": "Reference", "version": "0.1"},
            {"type": "Reference", "version": "0.1", "platform": "cpu", "imagePullSecrets": [{"name": "pull"}]},
        ]
    ),
    ".env": st.dictionaries(st.sampled_from(["A", "B_1"]), st.text("xyz", max_size=5), max_size=2),
    ".secretEnv": st.dictionaries(st.sampled_from(["C", "_D"]), st.just({"name": "s", "key": "k"}), max_size=2),
    ".volumes": st.sampled_from(
        [[], [{"name": "v", "emptyDir": {"sizeLimit": 1}}], [{"name": "v", "image": {"reference": "i"}}]]
    ),
    ".volumeMounts": st.just([]),
}


def documents(node: dict[str, Any], path: str = "") -> st.SearchStrategy[Any]:
    """Documents drawn from the generated schema itself: what the API server would take, the models must take."""
    for suffix, strategy in SPECIAL.items():
        if path == suffix or (suffix.count(".") == 1 and path.startswith(".spec") and path.endswith(suffix)):
            return strategy
    if "enum" in node:
        return st.sampled_from(node["enum"])
    if node.get("x-kubernetes-int-or-string"):
        return st.integers(1, 9) | st.sampled_from(["500m", "1Gi", "0.5", "1.5Gi"])
    if node.get("x-kubernetes-preserve-unknown-fields"):
        scalars = st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=3)
        return scalars | st.lists(scalars, max_size=2) if "type" not in node else st.just({"open": True})
    match node["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(node["minimum"], node.get("maximum", node["minimum"] + 1000))
        case "string":
            text = st.from_regex(re.compile(node["pattern"], re.ASCII), fullmatch=True) if "pattern" in node else NAMES
            return text.filter(lambda value: node.get("minLength", 0) <= len(value) <= node.get("maxLength", 99))
        case "array":
            return st.lists(documents(node["items"], f"{path}[]"), max_size=1)
        case _:
            return mappings(node, path)


def mappings(node: dict[str, Any], path: str) -> st.SearchStrategy[Any]:
    if isinstance(node.get("additionalProperties"), dict):
        return st.dictionaries(NAMES, documents(node["additionalProperties"], f"{path}{{}}"), max_size=2)
    fields = {
        name: documents(child, f"{path}.{name}") for name, child in node["properties"].items() if name != "status"
    }
    required = {name: fields.pop(name) for name in node.get("required", ())}
    return st.fixed_dictionaries(required, optional=fields)


@QUIET
@given(documents(crd.schema()))
def test_what_the_schema_and_the_rules_accept_parses_and_survives_a_round_trip(document: dict[str, Any]) -> None:
    assume(not list(parser.broken_rules(document)))
    parsed = api.parse(document)
    dumped = parsed.model_dump(by_alias=True, exclude_unset=True)
    assert api.parse(dumped) == parsed


@QUIET
@given(document=documents(crd.schema()))
def test_every_model_instance_validates_against_the_schema(
    document: dict[str, Any],
) -> None:
    assume(not list(parser.broken_rules(document)))
    dumped = api.parse(document).model_dump(by_alias=True, exclude_none=True)
    assert [f"{error.json_path}: {error.message}" for error in CHECKER.iter_errors(dumped)] == []


@QUIET
@given(data=st.data())
def test_models_and_schema_refuse_the_same_documents(
    data: st.DataObject,
) -> None:
    document = copy.deepcopy(data.draw(documents(crd.schema())))
    place, key = data.draw(st.sampled_from(list(mapping_places(document["spec"]))))
    place[key] = data.draw(st.sampled_from([-1, 0, 70000, 0.25, "", "A b", True, [], [{}], {}, {"unknown": 1}]))
    refused = bool(list(CHECKER.iter_errors(document)) or list(parser.broken_rules(document)))
    assert accepted(document) is not refused, [*CHECKER.iter_errors(document), *parser.broken_rules(document)]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5) | NAMES, inner, max_size=2),
    max_leaves=4,
)


@QUIET
@given(data=st.data())
def test_junk_anywhere_is_accepted_or_refused_with_words(data: st.DataObject) -> None:
    document = copy.deepcopy(data.draw(documents(crd.schema())))
    place, key = data.draw(st.sampled_from(list(mapping_places(document))))
    place[key] = data.draw(JUNK)
    try:
        api.parse(document)
    except api.SpecError as error:
        refusal = error
    else:
        return
    assert all(fault.field and fault.message for fault in refusal.faults)


def accepted(document: dict[str, Any]) -> bool:
    try:
        api.parse(document)
    except api.SpecError:
        return False
    return True


def mapping_places(node: Any) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield node, key
            if key not in OPEN:
                yield from mapping_places(value)
    elif isinstance(node, list):
        for item in node:
            yield from mapping_places(item)

"""Against objects as a real API server (1.36) stored them: `stored.json` pairs what was applied with what came back."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epd_operator.runtime.difference import differs, digest, owned, view

if TYPE_CHECKING:
    from collections.abc import Iterator

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "stored.json").read_text())
STATUS = {"DeepSeekV41Deployment": ("epd-operator-status", "status")}


def fields(stored: dict[str, Any]) -> str | None:
    return owned(stored, *STATUS.get(stored["kind"], ("epd-operator", "")))


def label(vector: dict[str, Any]) -> str:
    return f"{vector['stored']['kind']}/{vector['stored']['metadata']['name']}"


def of_kind(kind: str, part: str = "") -> dict[str, Any]:
    return copy.deepcopy(next(v for v in VECTORS if v["stored"]["kind"] == kind and part in label(v)))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


IDENTITY = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}
PLACES = [
    (number, path)
    for number, vector in enumerate(VECTORS)
    for path in leaves(vector["rendered"])
    if path not in IDENTITY
]


@pytest.mark.parametrize("vector", VECTORS, ids=label)
def test_what_was_applied_is_no_difference(vector: dict[str, Any]) -> None:
    assert not differs(vector["rendered"], vector["stored"], fields(vector["stored"]))


@settings(max_examples=400)
@given(st.sampled_from(PLACES))
def test_any_changed_value_in_the_plan_is_a_difference(place: tuple[int, tuple[Any, ...]]) -> None:
    number, path = place
    rendered = copy.deepcopy(VECTORS[number]["rendered"])
    old = at(rendered, path)
    new = (not old) if isinstance(old, bool) else f"{old}-changed" if isinstance(old, str) else 987654
    at(rendered, path[:-1])[path[-1]] = new
    stored = VECTORS[number]["stored"]
    assert differs(rendered, stored, fields(stored)), (label(VECTORS[number]), path)


@settings(max_examples=400)
@given(st.sampled_from(PLACES))
def test_any_changed_value_in_the_cluster_is_a_difference(place: tuple[int, tuple[Any, ...]]) -> None:
    number, path = place
    vector = VECTORS[number]
    stored = copy.deepcopy(vector["stored"])
    try:
        old = at(stored, path)
    except (KeyError, IndexError, TypeError):
        return  # an empty value that the server leaves out, or a list that it sorts
    if old != at(vector["rendered"], path):
        return  # written in another form; the ownership test below covers those
    at(stored, path[:-1])[path[-1]] = (not old) if isinstance(old, bool) else "changed-by-hand"
    assert differs(vector["rendered"], stored, fields(stored)), (label(vector), path)


@settings(max_examples=400)
@given(st.sampled_from([place for place in PLACES if isinstance(place[1][-1], str)]))
def test_a_field_dropped_from_the_plan_is_a_difference(place: tuple[int, tuple[Any, ...]]) -> None:
    """Only an apply without the field removes it, so its absence from the plan must lead to one."""
    number, path = place
    rendered = copy.deepcopy(VECTORS[number]["rendered"])
    stored = VECTORS[number]["stored"]
    tree = json.loads(fields(stored) or "{}")
    if not _is_own_field(tree, rendered, path):
        return  # inside a list or map that is owned as a whole: its other values change with it
    del at(rendered, path[:-1])[path[-1]]
    assert differs(rendered, stored, fields(stored)), (label(VECTORS[number]), path)


def _is_own_field(tree: dict[str, Any], rendered: Any, path: tuple[Any, ...]) -> bool:
    node: Any = tree
    for step in path:
        if isinstance(step, int):
            item = rendered[step]
            keys = [name for name in node if name.startswith("k:")]
            matching = [n for n in keys if all(item.get(k, v) == v for k, v in json.loads(n[2:]).items())]
            if not matching:
                return False
            node = node[matching[0]]
        else:
            node = node.get(f"f:{step}")
        if node is None:
            return False
        rendered = rendered[step]
    return True


def test_an_object_that_we_never_applied_differs() -> None:
    vector = of_kind("Service")
    assert differs(vector["rendered"], vector["stored"], None)
    vector["stored"]["metadata"]["managedFields"][0]["manager"] = "somebody"
    assert fields(vector["stored"]) is None


def test_a_field_that_another_manager_took_over_differs_whatever_its_form() -> None:
    """`kubectl scale`, `kubectl edit` and a foreign apply all take the field out of our set."""
    vector = of_kind("Deployment", "prefill")
    tree = json.loads(fields(vector["stored"]) or "")
    assert tree["f:spec"].pop("f:replicas") == {}
    assert differs(vector["rendered"], vector["stored"], json.dumps(tree))


def test_defaults_and_the_fields_of_others_are_no_difference() -> None:
    vector = of_kind("Deployment", "prefill")
    stored = vector["stored"]
    stored["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": "7"}
    stored["metadata"]["labels"]["somebodys"] = "label"
    stored["status"] = {"replicas": 3}
    stored["spec"]["template"]["spec"]["containers"].append({"name": "injected", "image": "mesh"})
    assert not differs(vector["rendered"], stored, fields(stored))


def test_quantities_are_compared_by_amount() -> None:
    vector = of_kind("Deployment", "prefill")
    container = vector["stored"]["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["requests"]["cpu"] == "1500m"
    rendered = vector["rendered"]["spec"]["template"]["spec"]["containers"][0]
    rendered["resources"]["requests"]["cpu"] = "1.5"
    assert not differs(vector["rendered"], vector["stored"], fields(vector["stored"]))
    rendered["resources"]["requests"]["cpu"] = "1501m"
    assert differs(vector["rendered"], vector["stored"], fields(vector["stored"]))


def test_a_variable_that_looks_like_a_quantity_is_text() -> None:
    vector = of_kind("Deployment", "prefill")
    container = vector["rendered"]["spec"]["template"]["spec"]["containers"][0]
    variable = next(item for item in container["env"] if item["name"] == "A")
    variable["value"] = "1000m"
    assert differs(vector["rendered"], vector["stored"], fields(vector["stored"]))


def test_view_keeps_what_the_plan_speaks_about() -> None:
    live = {"spec": {"a": 1, "b": 2, "list": [1, 2]}, "status": {}}
    assert view({"spec": {"a": 0, "list": [1]}}, live) == {"spec": {"a": 1, "list": [1, 2]}}
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1, "b": 3})


@pytest.mark.parametrize(("live", "other"), [([], False), (None, False), (["a"], True)])
def test_an_empty_set_that_nobody_owns_is_no_difference(live: Any, other: bool) -> None:
    fields = json.dumps({"f:status": {"f:revision": {}}})
    stored = {"status": {"revision": "1", **({} if live is None else {"acknowledged": live})}}
    assert differs({"status": {"revision": "1", "acknowledged": []}}, stored, fields) is other

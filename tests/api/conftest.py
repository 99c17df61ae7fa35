"""Gives every test that asks for a `case` all documents of the corpus, and the schema as a checker."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from epd_operator.api.crd import schema

if TYPE_CHECKING:
    from types import ModuleType


def _sibling(name: str) -> ModuleType:
    """Load a helper module beside this file; importlib mode puts no test folder on the path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


corpus = _sibling("corpus")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", corpus.cases(), ids=lambda case: case.name)


def strict(node: dict[str, Any]) -> dict[str, Any]:
    """The structural schema as plain JSON schema: unknown fields refused, int-or-string spelled out."""
    found = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-")}
    if "properties" in node:
        found["properties"] = {name: strict(child) for name, child in node["properties"].items()}
        found["additionalProperties"] = False
    if isinstance(node.get("additionalProperties"), dict):
        found["additionalProperties"] = strict(node["additionalProperties"])
    if "items" in node:
        found["items"] = strict(node["items"])
    if node.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    return found


@pytest.fixture(scope="session")
def checker() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(strict(schema()))

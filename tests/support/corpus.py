"""Reads the documents that the fast tests and the tests on a real API server share."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Case:
    """A document, and the parts of the refusals that it must meet; both None when it is accepted."""

    name: str
    document: dict[str, Any]
    server: str | None
    parse: str | None


def cases() -> list[Case]:
    """Every case of `corpus.yaml`."""
    corpus = yaml.load(Path(__file__).with_suffix(".yaml").read_bytes(), yaml.CSafeLoader)
    return [_case(corpus["base"], entry) for entry in corpus["cases"]]


def _case(base: dict[str, Any], entry: dict[str, Any]) -> Case:
    document = copy.deepcopy(base)
    for path in entry.get("remove", ()):
        parent, last = _parent(document, path)
        del parent[last]
    for path, value in entry.get("set", {}).items():
        parent, last = _parent(document, path)
        parent[last] = copy.deepcopy(value)
    rule = entry.get("rule")
    return Case(entry["name"], document, entry.get("server", rule), entry.get("parse", rule))


def _parent(document: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *parts, last = path.split(".")
    for part in parts:
        document = document.setdefault(part, {})
    return document, last

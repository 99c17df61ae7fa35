"""Reads the field cases: specs of a kind that people really wrote, with the verdict that is right for them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

_FILES: Final = ("field_cases.yaml", "pool_cases.yaml")


@dataclass(frozen=True)
class FieldCase:
    """One spec and what must be said of it.

    Attributes:
        refused: Rules that must refuse it; empty when it must be accepted.
        warned: Rules that must warn.
        quiet: Rules that must not speak.
        says: Words that the findings must hold.
    """

    name: str
    document: dict[str, Any]
    refused: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()
    quiet: tuple[str, ...] = ()
    says: tuple[str, ...] = field(default=())


@cache
def field_cases() -> tuple[FieldCase, ...]:
    """Every case of the files, in their order; each file has a base of its own."""
    corpora = [yaml.load(Path(__file__).with_name(name).read_bytes(), yaml.CSafeLoader) for name in _FILES]
    return tuple(_case(corpus["base"], entry) for corpus in corpora for entry in corpus["cases"])


def _case(base: dict[str, Any], entry: dict[str, Any]) -> FieldCase:
    document = copy.deepcopy(base)
    for path in entry.get("remove", ()):
        parent, last = _parent(document, path)
        del parent[last]
    for path, value in entry.get("set", {}).items():
        parent, last = _parent(document, path)
        parent[last] = _expanded(copy.deepcopy(value))
    lists = {key: tuple(map(str, entry.get(key, ()))) for key in ("refused", "warned", "quiet", "says")}
    return FieldCase(entry["name"], document, **lists)


def _parent(document: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *parts, last = path.split(".")
    # A flag or a version holds dots of its own only as a value, never as a name.
    for part in parts:
        document = document.setdefault(part, {})
    return document, last


def _expanded(value: Any) -> Any:
    """`@200KiB` stands for a text of that length, which nobody wants to read here."""
    if isinstance(value, dict):
        return {key: _expanded(inner) for key, inner in value.items()}
    return "x" * 200 * 1024 if value == "@200KiB" else value

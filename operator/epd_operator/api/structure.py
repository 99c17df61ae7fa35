"""The rules of a structural schema that can be checked without an API server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_KEYWORDS: Final = frozenset(
    {
        "additionalProperties",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    }
)
_CLASS: Final = re.compile(r"\\[sSwWdDbB]")
_NOT_RE2: Final = re.compile(r"\(\?[=!<>]|\\[1-9]|[*+?}]\+|\(\?#")
_OPEN: Final = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_MAX_DESCRIPTION: Final = 200


def lint(schema: Mapping[str, Any]) -> list[str]:
    """Everything in a schema that a CustomResourceDefinition would refuse, drop, or make too costly for CEL.

    Args:
        schema: An `openAPIV3Schema`.

    Returns:
        One line per finding, each starting with the path of the field; empty when there is none.
    """
    return list(_lint(schema, "", described=False))


def _lint(node: Mapping[str, Any], path: str, *, described: bool = True) -> Iterator[str]:
    here = path or "."
    yield from _lint_words(node, here, described=described)
    yield from _lint_type(node, here)
    if "properties" in node and "additionalProperties" in node:
        yield f"{here}: properties and additionalProperties exclude each other: keep one"
    for name in sorted(set(node.get("required", ())) - set(node.get("properties", {}))):
        yield f"{here}: requires {name}, which it does not describe"
    for name, child in node.get("properties", {}).items():
        # metadata belongs to the API server, which describes it itself.
        yield from _lint(child, f"{path}.{name}", described=(path, name) != ("", "metadata"))
    if isinstance(items := node.get("items"), Mapping):
        yield from _lint(items, f"{path}[]", described=False)
    if isinstance(values := node.get("additionalProperties"), Mapping):
        yield from _lint(values, f"{path}{{}}", described=False)


def _lint_words(node: Mapping[str, Any], here: str, *, described: bool) -> Iterator[str]:
    for key in sorted(set(node) - _KEYWORDS):
        yield f"{here}: keyword {key} is not allowed: the generator must rewrite it"
    if "default" in node and node["default"] is None:
        yield f"{here}: default null is not allowed: leave the default out"
    if (pattern := node.get("pattern")) is not None and _NOT_RE2.search(pattern):
        yield f"{here}: pattern {pattern} uses what RE2 lacks: no look-around, back-reference or possessive repeat"
    if pattern is not None and _CLASS.search(pattern):
        yield f"{here}: pattern {pattern} has a class that dialects read differently: spell its characters out"
    if described and not node.get("description"):
        yield f"{here}: has no description: kubectl explain shows nothing"
    if len(node.get("description", "")) > _MAX_DESCRIPTION:
        yield f"{here}: description is longer than {_MAX_DESCRIPTION} characters: shorten it"
    for rule in node.get("x-kubernetes-validations", ()):
        if not rule.get("message"):
            yield f"{here}: rule {rule.get('rule')} has no message: name the field and the way out"


def _lint_type(node: Mapping[str, Any], here: str) -> Iterator[str]:
    kind = node.get("type")
    if kind is None and not node.get(_INT_OR_STRING) and not node.get(_OPEN):
        yield f"{here}: has no type: a structural schema needs one everywhere"
    if node.get(_INT_OR_STRING) and kind is not None:
        yield f"{here}: int-or-string excludes type: drop the type"
    top = here in {".", ".apiVersion", ".kind", ".metadata"}
    if kind == "string" and not top and "enum" not in node and "maxLength" not in node:
        yield f"{here}: string without maxLength: CEL assumes the worst"
    if kind == "integer" and "minimum" not in node:
        yield f"{here}: integer without minimum: negative counts and ports would pass"
    if kind == "array":
        yield from _lint_list(node, here)
    if kind == "object" and not top and "additionalProperties" in node and "maxProperties" not in node:
        yield f"{here}: map without maxProperties: CEL assumes the worst"
    if kind == "object" and not top and not {"properties", "additionalProperties", _OPEN} & set(node):
        yield f"{here}: object without fields: the API server would prune everything in it"


def _lint_list(node: Mapping[str, Any], here: str) -> Iterator[str]:
    if "maxItems" not in node:
        yield f"{here}: list without maxItems: CEL assumes the worst"
    merge = node.get("x-kubernetes-list-type")
    if merge not in {"atomic", "map", "set"}:
        yield f"{here}: list without list type: two appliers would overwrite each other"
    if merge == "map":
        items = node.get("items", {})
        for key in node.get("x-kubernetes-list-map-keys", ()):
            if key not in items.get("required", ()) and "default" not in items.get("properties", {}).get(key, {}):
                yield f"{here}: list key {key} must be required or have a default"
        if not node.get("x-kubernetes-list-map-keys"):
            yield f"{here}: list type map without keys"

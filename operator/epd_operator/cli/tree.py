"""YAML and JSON as kubectl reads them, with the place of every value.

The tricky idea: a YAML text has the meaning that kubectl gives it before anything reaches a cluster, and that is not
PyYAML's: dates are texts, `1e3` is a number, `4.0` is the integer 4 and every key is a text. So nodes come from the C
parser, and values from the rules here.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import yaml
from typing_extensions import override

from epd_operator.cli.source import ReadError

if TYPE_CHECKING:
    from collections.abc import Iterator

Node: TypeAlias = yaml.Node

MAX_DEPTH: Final = 100
MAX_NODES: Final = 1_000_000
"""Values in one document once its aliases are written out."""

_TAG: Final = "tag:yaml.org,2002:"
_STR: Final = f"{_TAG}str"
_PLAIN: Final = f"{_TAG}plain"
_MERGE: Final = f"{_TAG}merge"
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN: Final = {
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"), False),
}
_INTEGER: Final = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))", re.ASCII)
_BASES: Final = (16, 2, 8, 10)
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NO_NUMBER: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NUMERIC: Final = frozenset("+-.0123456789")


class _Loader(yaml.CSafeLoader):
    """The C parser, with tags left open for plain scalars."""

    @override
    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        if kind is not yaml.ScalarNode:
            return f"{_TAG}seq" if kind is yaml.SequenceNode else f"{_TAG}map"
        if not implicit[0]:
            return _STR
        return _MERGE if value == "<<" else _PLAIN


def documents(text: str) -> Iterator[tuple[Any, Node | None]]:
    """Value and node of each document of a text; documents without content are left out.

    Raises:
        ReadError: At the first place that cannot be read; what came before has been yielded.
    """
    if text.lstrip()[:1] in {"{", "["}:
        try:
            value = _json(text)
        except (ValueError, RecursionError):
            pass  # flow style YAML, or something that the other reader names with its line
        else:
            yield value, _first_node(text)
            return
    for node in _nodes(text):
        value = _Builder().value(node, 0)
        if value is not None:
            yield value, node


def _json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("duplicate key")
        return result

    def refuse(_: str) -> Any:
        raise ValueError("no JSON number")

    return _plain(json.loads(text, object_pairs_hook=unique, parse_constant=refuse), 0)


def _plain(value: Any, depth: int) -> Any:
    """A JSON value with numbers as Kubernetes keeps them."""
    if depth > MAX_DEPTH:
        raise ReadError(f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {key: _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, depth + 1) for inner in value]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return _fitting(value, None) if number else value


def _first_node(text: str) -> Node | None:
    try:
        return next(_nodes(text), None)
    except ReadError:
        return None


def _nodes(text: str) -> Iterator[Node]:
    try:
        loader = _Loader(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                if node is not None:
                    yield node
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, text) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ReadError(f"holds the control character {error.character:#04x}: remove it", line) from error


def _not_yaml(error: yaml.MarkedYAMLError, text: str) -> ReadError:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return ReadError(f"is not YAML: {error.problem or error.context}")
    place = (mark.line + 1, mark.column + 1)
    if "{{" in text:
        return _template(*place)
    line = text.split("\n")[mark.line : mark.line + 1]
    if line and line[0][mark.column : mark.column + 1] == "\t":
        return ReadError("is not YAML: a tab cannot indent: use spaces", *place)
    context = f", {error.context}" if error.context else ""
    begun = f" begun in line {error.context_mark.line + 1}" if error.context and error.context_mark else ""
    return ReadError(f"is not YAML: {error.problem}{context}{begun}", *place)


def _template(line: int, column: int) -> ReadError:
    return ReadError(
        "holds template marks ({{): render it first, such as `helm template CHART | epd validate -`", line, column
    )


def at(node: Node) -> tuple[int, int]:
    """Line and column of a node, 1-based."""
    return node.start_mark.line + 1, node.start_mark.column + 1


def _fitting(number: float, node: Node | None) -> int | float:
    place = (0, 0) if node is None else at(node)
    if isinstance(number, float):
        if not math.isfinite(number):
            raise ReadError("holds a number out of range: quote it if it is a string", *place)
        # What JSON writes without a fraction, the API server reads as an integer.
        if not number.is_integer() or abs(number) >= 2**63:
            return number
        return int(number)
    if not -(2**63) <= number < 2**64:
        raise ReadError("holds an integer of more than 64 bits: quote it if it is a string", *place)
    return number


@dataclass
class _Builder:
    """Turns the nodes of one document into values.

    Attributes:
        known: Value and size of each collection already met, by identity: an alias is the same node again.
        open: Identities of the collections around the current one.
        count: Values so far, aliases written out.
    """

    known: dict[int, tuple[Any, int]] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    count: int = 0

    def value(self, node: Node, depth: int) -> Any:
        """The value of a node.

        Raises:
            ReadError: It has none in JSON, or is too large.
        """
        self._grow(node, 1)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if id(node) in self.known:
            value, size = self.known[id(node)]
            self._grow(node, size)
            return value
        if id(node) in self.open:
            raise ReadError("holds an alias to what contains it: write the value out", *at(node))
        if depth >= MAX_DEPTH:
            raise ReadError(f"is nested deeper than {MAX_DEPTH} levels", *at(node))
        before = self.count
        self.open.add(id(node))
        value = self._collection(node, depth + 1)
        self.open.discard(id(node))
        self.known[id(node)] = value, self.count - before
        return value

    def _grow(self, node: Node, amount: int) -> None:
        self.count += amount
        if self.count > MAX_NODES:
            raise ReadError(f"has more than {MAX_NODES:,} values once its aliases are written out", *at(node))

    def _collection(self, node: Node, depth: int) -> Any:
        if node.tag not in {f"{_TAG}seq", f"{_TAG}map"}:
            raise _unknown_tag(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, depth) for item in node.value]
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged = {**self._merged(value_node, depth), **merged}
                continue
            key = _key(key_node)
            if key in result:
                message = f"has the key {key!r} twice in one object, first in line {lines[key]}: remove one"
                raise ReadError(message, *at(key_node))
            lines[key] = key_node.start_mark.line + 1
            result[key] = self.value(value_node, depth)
        return {**merged, **result}

    def _merged(self, node: Node, depth: int) -> dict[str, Any]:
        values = self.value(node, depth)
        result: dict[str, Any] = {}
        for value in values if isinstance(values, list) else [values]:
            if not isinstance(value, dict):
                raise ReadError("merges (<<) something other than an object: give an alias to an object", *at(node))
            result = {**value, **result}
        return result


def _scalar(node: yaml.ScalarNode) -> Any:
    tag = node.tag.removeprefix(_TAG)
    if tag in {"str", "merge"}:
        return node.value
    if tag in {"plain", "int", "float", "bool", "null"}:
        return _guess(node, node.value)
    raise _unknown_tag(node)


def _guess(node: yaml.ScalarNode, text: str) -> Any:
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if text[0] not in _NUMERIC:
        return text
    if _NO_NUMBER.fullmatch(text):
        raise ReadError(f"holds {text}, which JSON has no number for: quote it if it is a string", *at(node))
    bare = text.replace("_", "")
    if (match := _INTEGER.fullmatch(bare)) is not None:
        digits, base = next((result, base) for result, base in zip(match.groups()[1:], _BASES, strict=True) if result)
        # More digits than any 64-bit number has would be slow to read, or refused by Python.
        number = int(digits, base) if len(digits) <= 64 else 2**64
        return _fitting(-number if match[1] == "-" else number, node)
    return _fitting(float(bare), node) if _FLOAT.fullmatch(bare) else text


def _key(node: Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        # `{{ .Values.x }}` is an object as the key of an object.
        if node.start_mark.column and isinstance(node, yaml.MappingNode) and node.flow_style:
            raise _template(*at(node))
        raise ReadError("has a key that is not a string: quote it", *at(node))
    value = _scalar(node)
    if value is None:
        raise ReadError("has an empty key: name it, or quote it", *at(node))
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _unknown_tag(node: Node) -> ReadError:
    return ReadError(f"has the tag {node.tag!r}, which Kubernetes does not know: remove it", *at(node))

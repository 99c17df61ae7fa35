"""Where in a text a field of the spec stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epd_operator.cli.tree import Node

Pair = tuple["Node | None", "Node"]


@dataclass(frozen=True)
class Position:
    """A stretch of one line; lines and columns are 1-based, `end` is the column behind the last character.

    Attributes:
        exact: It is the field itself; otherwise the nearest object around it that exists.
    """

    line: int
    column: int
    end: int
    exact: bool = True


def locate(root: Node, path: str) -> Position:
    """Where a field stands.

    Args:
        root: The object that the path starts in.
        path: Such as `spec.roles.prefill.args.tp-size` or `spec.volumes[0].name`; a key may hold dots.
    """
    key, node, rest = _walk(root, path)
    return _span(key, node, exact=not rest)


def spelling(root: Node, path: str) -> str | None:
    """The text of a scalar field, before YAML gave it a meaning; None when it is not a scalar or not there."""
    _, node, rest = _walk(root, path)
    return node.value if not rest and isinstance(node, yaml.ScalarNode) else None


def _walk(root: Node, path: str) -> tuple[Node | None, Node, str]:
    """Key and value of the last node on a path that exists, and what is left of the path."""
    key: Node | None = None
    node, rest = root, path
    while rest:
        step = _step(node, rest)
        if step is None:
            break
        (key, node), rest = step
    return key, node, rest


def _step(node: Node, rest: str) -> tuple[Pair, str] | None:
    """The next node on a path, and what is left of the path."""
    if isinstance(node, yaml.SequenceNode):
        index, closed, behind = rest.removeprefix("[").partition("]")
        if not (rest.startswith("[") and closed and index.isdecimal() and int(index) < len(node.value)):
            return None
        return (None, node.value[int(index)]), behind.removeprefix(".")
    best: tuple[Pair, str] | None = None
    length = -1
    for key, value in _entries(node):
        name = key.value
        if len(name) > length and rest.startswith(name) and rest[len(name) : len(name) + 1] in {"", ".", "["}:
            best, length = ((key, value), rest[len(name) :].removeprefix(".")), len(name)
    return best


def _entries(node: Node) -> Iterator[tuple[yaml.ScalarNode, Node]]:
    """Keys and values of an object, its own before the merged ones."""
    if not isinstance(node, yaml.MappingNode):
        return
    merged: list[Node] = []
    for key, value in node.value:
        if key.value == "<<":
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        elif isinstance(key, yaml.ScalarNode):
            yield key, value
    for other in merged:
        yield from _entries(other)


def _span(key: Node | None, node: Node, *, exact: bool) -> Position:
    first = key if key is not None else node
    start = first.start_mark
    last = node if exact and node.end_mark.line == start.line else first
    # A block collection ends where the next thing begins, maybe lines below.
    end = last.end_mark.column if last.end_mark.line == start.line else start.column + 1
    return Position(start.line + 1, start.column + 1, max(end, start.column + 1) + 1, exact)

"""The DeepSeekV41Deployments in a text, and how many other things were passed over."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from epd_operator.api.names import GROUP, KIND
from epd_operator.cli import source as sources
from epd_operator.cli import tree
from epd_operator.cli.position import Position, locate, spelling
from epd_operator.cli.source import ReadError, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epd_operator.cli.tree import Node

_SERVER: Final = ("managedFields", "creationTimestamp", "resourceVersion", "selfLink")


@dataclass(frozen=True)
class Document:
    """One object of ours.

    Attributes:
        source: Where it was read.
        number: 1-based place among all documents and list items of the source.
        data: The object as kubectl would send it, without what the API server keeps in it.
        node: The same with places; None when only its values could be read.
    """

    source: Source
    number: int
    data: dict[str, Any]
    node: Node | None

    @property
    def label(self) -> str:
        """How a person calls it: namespace and name, or its place in the file."""
        metadata = self.data.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
            return f"document {self.number}"
        namespace = metadata.get("namespace")
        return f"{namespace}/{name}" if isinstance(namespace, str) and namespace else name

    def locate(self, field_path: str) -> Position | None:
        """Where a field stands, or what should hold it; None when that is not known."""
        return None if self.node is None else locate(self.node, field_path)

    def spelling(self, field_path: str) -> str | None:
        """How a field's value is written in the text; None when it is not a scalar or not known."""
        return None if self.node is None else spelling(self.node, field_path)


@dataclass(frozen=True)
class Unreadable:
    """A file, or the rest of one, that could not be used.

    Attributes:
        name: Of the file.
        error: Why, and where.
        source: Its text; None when there is none.
    """

    name: str
    error: ReadError
    source: Source | None = None


@dataclass
class Reading:
    """What one file holds.

    Attributes:
        name: Of the file.
        documents: Those of ours.
        skipped: Documents and list items of other kinds.
        unreadable: Why it, or its rest, could not be used.
    """

    name: str
    documents: list[Document] = field(default_factory=list)
    skipped: int = 0
    unreadable: Unreadable | None = None


def read(paths: Sequence[str], *, ours_only: bool = False) -> Iterator[Reading]:
    """Read files one after the other; nothing is raised.

    Args:
        paths: Files, folders, or `-` for standard input.
        ours_only: Pass over files that cannot hold one of our objects even when they were named, as in folders.
    """
    for path, named in sources.expand(paths):
        try:
            source = sources.read(path)
        except ReadError as error:
            if (named and not ours_only) or not _foreign(path):
                yield Reading(path, unreadable=Unreadable(path, error))
            continue
        if source.mentions_us or (named and not ours_only):
            yield parse(source)


def parse(source: Source) -> Reading:
    """The objects of ours in one text."""
    reading = Reading(source.name)
    try:
        _fill(reading, source)
    except ReadError as error:
        reading.unreadable = Unreadable(source.name, error, source)
    return reading


def _fill(reading: Reading, source: Source) -> None:
    number = 0
    for value, node in tree.documents(source.text):
        for inner, place in _items(value, node):
            number += 1
            if _is_ours(inner):
                reading.documents.append(Document(source, number, _without_server_fields(inner), place))
            elif isinstance(inner, dict):
                reading.skipped += 1
            else:
                line, column = tree.at(place) if place is not None else (0, 0)
                raise ReadError("does not hold a Kubernetes object: give manifests", line, column)
    if not number:
        raise ReadError("is empty: give at least one manifest")


def _foreign(path: str) -> bool:
    """Whether a file that is not text cannot hold one of our objects."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(sources.MAX_BYTES)
    except (OSError, ValueError):
        return False
    return not sources.mentions_us(raw.decode("latin-1"))


def _items(value: Any, node: Node | None) -> Iterator[tuple[Any, Node | None]]:
    """The object itself, or the items of a list of objects, of lists in lists as well."""
    items = value.get("items") if isinstance(value, dict) else None
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(items, list) or not isinstance(kind, str) or not kind.endswith("List"):
        yield value, node
        return
    place = _below(node, "items")
    nodes = place.value if isinstance(place, yaml.SequenceNode) else [None] * len(items)
    for item, inner in zip(items, nodes, strict=True):
        yield from _items(item, inner)


def _below(node: Node | None, name: str) -> Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)


def _is_ours(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    api_version = value.get("apiVersion")
    return value.get("kind") == KIND or (isinstance(api_version, str) and api_version.startswith(f"{GROUP}/"))


def _without_server_fields(value: dict[str, Any]) -> dict[str, Any]:
    metadata = value.get("metadata")
    kept = {key: inner for key, inner in value.items() if key != "status"}
    if isinstance(metadata, dict):
        kept["metadata"] = {key: inner for key, inner in metadata.items() if key not in _SERVER}
    return kept

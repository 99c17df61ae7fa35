"""The last known state of everything that concerns us, in the shape that `plan` reads.

Three sources write here: watch events, our own lists, and the answers to our own writes. They arrive in any order, so
the newer resourceVersion wins (they are comparable within one kind), and a deletion leaves a tombstone against late
events of a deleted object.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from epd_operator.api.names import LABEL_INSTANCE, MANAGER, STATUS_MANAGER
from epd_operator.kube.kind import POD, Kind
from epd_operator.runtime.difference import owned
from epd_operator.runtime.watch_scope import CUSTOM, Key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

TOMBSTONES: Final = 4096
POD_SPEC: Final = ("nodeName", "serviceAccountName")


class Place(NamedTuple):
    """Where an object lives."""

    kind: Kind
    namespace: str
    name: str


@dataclass(frozen=True)
class Entry:
    """One cached object.

    Attributes:
        obj: The object without managedFields; pods without most of their spec.
        fields: What our manager applied, as compact JSON; None when nothing.
    """

    obj: dict[str, Any]
    fields: str | None

    @property
    def uid(self) -> str:
        """metadata.uid."""
        return str(self.obj["metadata"].get("uid", ""))

    @property
    def version(self) -> str:
        """metadata.resourceVersion."""
        return str(self.obj["metadata"].get("resourceVersion", ""))


class Cache:
    """Objects by place, children by owner, pods by custom resource."""

    def __init__(self) -> None:
        self._entries: dict[Place, Entry] = {}
        self._children: defaultdict[str, set[Place]] = defaultdict(set)
        self._pods: defaultdict[Key, set[Place]] = defaultdict(set)
        self._tombstones: dict[Place, str] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, kind: Kind, namespace: str, name: str) -> Entry | None:
        """One object with the fields that we own, or None."""
        return self._entries.get(Place(kind, namespace, name))

    def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """One object, or None."""
        entry = self.entry(kind, namespace, name)
        return entry.obj if entry else None

    def custom(self) -> Iterator[dict[str, Any]]:
        """All custom resources."""
        return (entry.obj for place, entry in self._entries.items() if place.kind == CUSTOM)

    def keys(self) -> list[Key]:
        """The keys of all custom resources."""
        return [Key(place.namespace, place.name) for place in self._entries if place.kind == CUSTOM]

    def objects(self, kind: Kind, namespace: str | None) -> list[dict[str, Any]]:
        """All objects of a kind in a namespace; None for all namespaces."""
        return [
            entry.obj
            for place, entry in self._entries.items()
            if place.kind == kind and namespace in {None, place.namespace}
        ]

    def children(self, uid: str) -> list[dict[str, Any]]:
        """Objects whose controller has this uid, pods apart, ordered by kind and name."""
        places = sorted(self._children.get(uid, ()), key=lambda place: (place.kind.kind, place.name))
        return [self._entries[place].obj for place in places]

    def pods(self, key: Key) -> list[dict[str, Any]]:
        """Pods labelled with this custom resource, ordered by name."""
        places = sorted(self._pods.get(key, ()), key=lambda place: place.name)
        return [self._entries[place].obj for place in places]

    def put(self, kind: Kind, obj: Mapping[str, Any]) -> bool:
        """Store what was seen; False when it is not newer than what is stored."""
        place = _place(kind, obj)
        version = str(obj["metadata"].get("resourceVersion", ""))
        known = self._entries.get(place)
        if known is not None and not _newer(version, known.version):
            return False
        if not _newer(version, self._tombstones.get(place, "")):
            return False
        self._tombstones.pop(place, None)
        self._drop(place)
        entry = _entry(kind, obj)
        self._entries[place] = entry
        for index, key in self._indices(place, entry):
            index[key].add(place)
        return True

    def remove(self, kind: Kind, obj: Mapping[str, Any]) -> bool:
        """Forget a deleted object; `obj` is its last state, with the resourceVersion of the deletion if known."""
        place = _place(kind, obj)
        version = str(obj["metadata"].get("resourceVersion", ""))
        known = self._entries.get(place)
        if known is not None and _newer(known.version, version):
            return False  # a namesake was created since
        if not version or _newer(version, self._tombstones.get(place, "")):
            self._tombstones.pop(place, None)
            self._tombstones[place] = version
            if len(self._tombstones) > TOMBSTONES:
                self._tombstones.pop(next(iter(self._tombstones)))
        self._drop(place)
        return known is not None

    def replace(
        self, kind: Kind, namespace: str | None, items: Iterable[Mapping[str, Any]], version: str
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Take over a complete list.

        Args:
            kind: Kind that was listed.
            namespace: Namespace that was listed; None for all.
            items: Everything in it.
            version: ResourceVersion of the list.

        Returns:
            What is new, and what had been deleted unseen.
        """
        listed, news = set(), []
        for item in items:
            place = _place(kind, item)
            listed.add(place)
            if self.put(kind, item):
                news.append(self._entries[place].obj)
        gone = [
            (place, entry)
            for place, entry in self._entries.items()
            if place.kind == kind
            and namespace in {None, place.namespace}
            and place not in listed
            and not _newer(entry.version, version)
        ]
        for place, _ in gone:
            self._drop(place)
            self._tombstones[place] = version
        return news, [entry.obj for _, entry in gone]

    def _drop(self, place: Place) -> None:
        entry = self._entries.pop(place, None)
        if entry is None:
            return
        for index, key in self._indices(place, entry):
            index[key].discard(place)
            if not index[key]:
                del index[key]

    def _indices(self, place: Place, entry: Entry) -> Iterator[tuple[defaultdict[Any, set[Place]], Any]]:
        metadata = entry.obj["metadata"]
        if place.kind == POD:
            instance = (metadata.get("labels") or {}).get(LABEL_INSTANCE)
            if instance:
                yield self._pods, Key(place.namespace, instance)
        elif place.kind != CUSTOM:
            owner = controller(entry.obj)
            if owner is not None:
                yield self._children, owner["uid"]


def controller(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The ownerReference of the controller of `obj`, or None."""
    references = obj["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)


def _place(kind: Kind, obj: Mapping[str, Any]) -> Place:
    metadata = obj["metadata"]
    return Place(kind, metadata.get("namespace", ""), metadata["name"])


def _newer(version: str, than: str) -> bool:
    if not than:
        return True
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than


def _entry(kind: Kind, obj: Mapping[str, Any]) -> Entry:
    fields = owned(obj, STATUS_MANAGER, "status") if kind == CUSTOM else owned(obj, MANAGER)
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    slim = {**obj, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    if kind == POD:
        spec = obj.get("spec") or {}
        slim["spec"] = {name: spec[name] for name in POD_SPEC if name in spec} | {
            "containers": [
                {name: container[name] for name in ("name", "image") if name in container}
                for container in spec.get("containers") or ()
            ]
        }
    return Entry(slim, fields)

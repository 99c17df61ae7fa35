"""Watch events and lists: the object into the cache, the custom resource that it concerns into the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epd_operator.api.names import GROUP, KIND, LABEL_INSTANCE
from epd_operator.runtime.cache import Cache, controller
from epd_operator.runtime.watch_scope import CUSTOM, Key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.kube.kind import Kind
    from epd_operator.runtime.queue import WorkQueue


class Intake:
    """The one way into cache and queue, for watch events and lists alike.

    Args:
        cache: Takes the objects.
        queue: Takes the keys of the custom resources that they concern.
    """

    def __init__(self, cache: Cache, queue: WorkQueue[Key]) -> None:
        self._cache = cache
        self._queue = queue

    def saw(self, kind: Kind, obj: Mapping[str, Any]) -> None:
        """An object exists in this state; an unchanged one (such as the echo of our own write) wakes nothing."""
        before = self._cache.get(kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        if self._cache.put(kind, obj):
            self._wake(kind, obj, urgent=kind == CUSTOM and _intent(before) != _intent(obj))
            if before is not None and kind != CUSTOM and _owner(kind, before) != _owner(kind, obj):
                self._wake(kind, before)

    def lost(self, kind: Kind, obj: Mapping[str, Any]) -> None:
        """An object is gone; `obj` is its last state."""
        if self._cache.remove(kind, obj):
            self._wake(kind, obj, urgent=kind == CUSTOM)

    def listed(self, kind: Kind, namespace: str | None, items: list[dict[str, Any]], version: str) -> None:
        """A complete list: what is new, and what vanished while nobody watched."""
        news, gone = self._cache.replace(kind, namespace, items, version)
        for obj in (*news, *gone):
            self._wake(kind, obj, urgent=kind == CUSTOM)

    def disowned(self, kind: Kind, namespace: str | None) -> None:
        """The API server does not know the kind any more, and with it went all of its objects."""
        for obj in self._cache.objects(kind, namespace):
            self.lost(kind, obj)

    def all(self) -> None:
        """Reconcile everything again."""
        for key in self._cache.keys():  # noqa: SIM118 - not a mapping
            self._queue.add(key)

    def _wake(self, kind: Kind, obj: Mapping[str, Any], *, urgent: bool = False) -> None:
        key = _owner(kind, obj)
        if key is None:
            return
        if kind == CUSTOM:
            self._queue.add(key, urgent=urgent)
        else:
            self._queue.gather(key)


def _owner(kind: Kind, obj: Mapping[str, Any]) -> Key | None:
    metadata = obj["metadata"]
    namespace = metadata.get("namespace", "")
    if kind == CUSTOM:
        return Key(namespace, metadata["name"])
    owner = controller(obj)
    if owner is not None and owner.get("kind") == KIND and str(owner.get("apiVersion")).startswith(f"{GROUP}/"):
        return Key(namespace, owner["name"])
    instance = (metadata.get("labels") or {}).get(LABEL_INSTANCE)
    return Key(namespace, instance) if instance else None


def _intent(obj: Mapping[str, Any] | None) -> tuple[Any, ...] | None:
    """What the user asked for last: its changes are acted on at once, even during a back-off."""
    if obj is None:
        return None
    metadata = obj["metadata"]
    return metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp")

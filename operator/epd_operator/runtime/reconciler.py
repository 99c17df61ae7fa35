"""One custom resource, from read to nothing left to do.

The tricky idea: reading, planning and applying are repeated until a round writes nothing, so a plan may depend on what
it has just created (a stored snapshot, an adopted child) without any order of events being assumed. An object that
cannot be applied does not stop the others: its error becomes one line in the status, and the key is tried again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from epd_operator.api.names import API_VERSION, KIND, MANAGER, STATUS_MANAGER
from epd_operator.kube import (
    Cluster,
    Conflict,
    Invalid,
    NotFound,
    StatusError,
    TooManyRequests,
    Transport,
    Unauthorized,
)
from epd_operator.plan import Event, Observed, Plan, Settings, plan
from epd_operator.runtime.cache import Cache, Entry, controller
from epd_operator.runtime.difference import differs, digest, owned, view
from epd_operator.runtime.watch_scope import CUSTOM, Key, kind_of

if TYPE_CHECKING:
    from epd_operator.kube.kind import Kind

log = logging.getLogger(__name__)

ROUNDS: Final = 4
"""Rounds of one reconciliation; a plan that still changes after so many is continued from the queue."""

CONFLICT_SECONDS: Final = 30.0
"""How often a name that a foreign object holds is looked at again; that object is not watched."""

LATE_SECONDS: Final = 0.5
"""How long after its time a change that time alone brings is looked for."""

TERMINATING: Final = "NamespaceTerminating"
LEAVING_SECONDS: Final = 30.0
"""In a namespace that is going away everything of ours goes too: nothing is made, reported or tried in haste."""

REPAIR: Final = f"{MANAGER}-repair"
"""Field manager of the one write that is not a server-side apply, so that its traces can be recognized."""

Planner = Callable[[Mapping[str, Any], Observed, Settings], Plan]


class Routers(Protocol):
    """Where the registrars' documents come from."""

    def documents(self, key: Key) -> list[dict[str, Any]]:
        """The last document of each registrar that answers."""

    def follow(self, key: Key, *, moving: bool) -> None:
        """Poll this resource's registrars, faster while something moves."""

    def drop(self, key: Key) -> None:
        """Stop polling."""


@dataclass
class Memory:
    """What is remembered about one custom resource between reconciliations; losing it costs a few reads.

    Attributes:
        uid: Whom this is about; a namesake starts afresh.
        leaving_until: Monotonic time before which nothing is tried, because the namespace was found to be going away.
        conflicts: Foreign objects found at the last attempt.
        failures: Errors of the last attempt, one line each.
        settled: Per child, digest of what was applied and of what the server made of it, where the two differ for
            good (an admission plug-in rewrites a field); such an object is applied again only when one of them changes.
        verified: Per child, resourceVersion and digest of the plan's object that were found to agree: most events leave
            most children as they were, and comparing them again is the most expensive part of a reconciliation.
    """

    uid: str = ""
    leaving_until: float = 0.0
    conflicts: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    settled: dict[tuple[Kind, str], tuple[str, str]] = field(default_factory=dict)
    verified: dict[tuple[Kind, str], tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What the worker does with the key next.

    Attributes:
        result: Controller-runtime's name for it: success, requeue, requeue_after or error.
        after: Seconds until the next look, or None.
    """

    result: str
    after: float | None = None


@dataclass
class _Attempt:
    """Tally of one reconciliation."""

    writes: int = 0
    conflicts: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    leaving: bool = False


class Reconciler:
    """Makes the cluster hold what `plan` says.

    Args:
        cluster: The API server.
        cache: What is known; written through.
        routers: Registrar documents.
        settings: Release settings for the plan.
        applied: Called with kind and outcome of every write.
        record: Posts Events.
        planner: `plan`, or a stand-in.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        routers: Routers,
        settings: Settings,
        *,
        applied: Callable[[str, str], None] = lambda *_: None,
        record: Callable[[Mapping[str, Any], tuple[Event, ...]], Any] | None = None,
        planner: Planner = plan,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._routers = routers
        self._settings = settings
        self._applied = applied
        self._record = record
        self._planner = planner
        self._clock = clock
        self._memories: dict[Key, Memory] = {}

    async def reconcile(self, key: Key) -> Outcome:
        """Bring one custom resource to rest.

        Raises:
            ApiError: The API server cannot be worked with right now (no answer, overload, bad credentials).
        """
        custom = self._cache.get(CUSTOM, *key)
        if custom is None or custom["metadata"].get("deletionTimestamp"):
            # Children go through their ownerReferences; nothing of ours blocks the deletion.
            self._memories.pop(key, None)
            self._routers.drop(key)
            return Outcome("success")
        memory = self._memory(key, custom["metadata"]["uid"])
        if self._clock() < memory.leaving_until:
            return Outcome("requeue_after", LEAVING_SECONDS)
        attempt = _Attempt(conflicts=list(memory.conflicts), failures=list(memory.failures))
        for _ in range(ROUNDS):
            target = self._plan(key, custom, attempt)
            attempt = await self._apply_all(target, custom, memory)
            if attempt.leaving:
                memory.leaving_until = self._clock() + LEAVING_SECONDS
                return Outcome("requeue_after", LEAVING_SECONDS)
            if not attempt.writes:
                break
        memory.conflicts, memory.failures = tuple(attempt.conflicts), tuple(attempt.failures)
        target = self._plan(key, custom, attempt)
        await self._prune(target, custom)
        await self._write_status(target, key, custom)
        self._routers.follow(key, moving=target.moving)
        if attempt.failures:
            return Outcome("error")
        if attempt.writes:
            return Outcome("requeue")
        waits = [CONFLICT_SECONDS] if attempt.conflicts else []
        if target.after is not None:
            # A moment later, as the loop's clock and the wall's do not run alike.
            waits.append(max(0.0, target.after) + LATE_SECONDS)
        return Outcome("requeue_after", min(waits)) if waits else Outcome("success")

    def _memory(self, key: Key, uid: str) -> Memory:
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memories[key] = Memory(uid)
        return memory

    def _plan(self, key: Key, custom: Mapping[str, Any], attempt: _Attempt) -> Plan:
        observed = Observed(
            children=self._cache.children(custom["metadata"]["uid"]),
            pods=self._cache.pods(key),
            routers=self._routers.documents(key),
            conflicts=tuple(attempt.conflicts),
            failures=tuple(attempt.failures),
            now=datetime.now(UTC),
        )
        return self._planner(custom, observed, self._settings)

    async def _apply_all(self, target: Plan, custom: Mapping[str, Any], memory: Memory) -> _Attempt:
        attempt = _Attempt()
        for obj in target.objects:
            kind = kind_of(obj)
            name = f"{obj['kind']}/{obj['metadata']['name']}"
            try:
                outcome = await self._apply_one(kind, obj, custom["metadata"]["uid"], memory)
            except (Transport, Unauthorized, TooManyRequests):
                raise
            except StatusError as error:
                if TERMINATING in error.causes:
                    attempt.leaving = True
                    return attempt
                attempt.failures.append(f"{name}: {error.reason or error.status}: {error.message}")
                outcome = "failed"
            if outcome == "conflict":
                attempt.conflicts.append(name)
            if outcome in {"created", "changed"}:
                attempt.writes += 1
                log.info(outcome, extra={"object": name, "namespace": obj["metadata"]["namespace"]})
            if outcome != "same":
                self._applied(kind.kind, outcome)
        return attempt

    async def _apply_one(self, kind: Kind, obj: Mapping[str, Any], uid: str, memory: Memory) -> str:
        """Apply unless nothing differs; returns same, created, changed or conflict."""
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        entry = self._cache.entry(kind, namespace, name)
        place = (kind, name)
        if entry is None or not _is_ours(entry, uid):
            entry = await self._look_up(kind, namespace, name)
            if entry is not None and not _is_ours(entry, uid):
                return "conflict"
        elif memory.verified.get(place) == (entry.version, digest(obj)):
            return "same"
        elif not differs(obj, entry.obj, entry.fields) or memory.settled.get(place) == _state(obj, entry.obj):
            memory.verified[place] = (entry.version, digest(obj))
            return "same"
        try:
            stored = await self._cluster.apply(kind, obj, MANAGER)
        except Invalid:
            if entry is None:
                raise
            stored = await self._overwrite(kind, obj)
        self._cache.put(kind, stored)
        if differs(obj, stored, owned(stored, MANAGER)):
            memory.settled[place] = _state(obj, stored)
            log.warning(
                "the API server stores something else than was applied", extra={"object": f"{kind.kind}/{name}"}
            )
        else:
            memory.settled.pop(place, None)
        memory.verified[place] = (stored["metadata"]["resourceVersion"], digest(obj))
        return "created" if entry is None else "changed"

    async def _overwrite(self, kind: Kind, obj: Mapping[str, Any]) -> dict[str, Any]:
        """Apply where an edit by hand makes the merge invalid.

        Who edits a port from 8000 to 9999 leaves an item that is theirs; beside ours it breaks a rule (two ports with
        one name). A merge patch replaces such lists. What it sets must end up as applied by us alone, or dropping it
        from the plan one day would not remove it; so its traces in managedFields are wiped before the apply.

        Raises:
            Invalid: The plan's object itself breaks a rule.
        """
        patched = await self._cluster.merge(kind, obj, REPAIR)
        metadata = patched["metadata"]
        identity = {name: metadata[name] for name in ("name", "namespace", "resourceVersion")}
        traces = [entry for entry in metadata.get("managedFields") or () if entry.get("manager") != REPAIR]
        await self._cluster.merge(kind, {"metadata": {**identity, "managedFields": traces}}, REPAIR)
        return await self._cluster.apply(kind, obj, MANAGER)

    async def _look_up(self, kind: Kind, namespace: str, name: str) -> Entry | None:
        """What holds a name that the cache does not show as ours: nobody, a stranger, or ours without its label."""
        try:
            result = await self._cluster.get(kind, namespace, name)
        except NotFound:
            return None
        return Entry(result, owned(result, MANAGER))

    async def _prune(self, target: Plan, custom: Mapping[str, Any]) -> None:
        namespace = custom["metadata"]["namespace"]
        for ref in target.prune:
            kind = kind_of({"apiVersion": ref.api_version, "kind": ref.kind})
            known = self._cache.get(kind, namespace, ref.name)
            if known is None or known["metadata"].get("deletionTimestamp"):
                continue
            try:
                answer = await self._cluster.delete(kind, namespace, ref.name, uid=ref.uid)
            except (NotFound, Conflict):  # gone already, or a namesake took its place: the watch will report it
                continue
            if answer.get("kind") == ref.kind:  # waits for a finalizer
                self._cache.put(kind, answer)
            else:
                self._cache.remove(kind, known)
            self._applied(ref.kind, "pruned")
            log.info("pruned", extra={"object": f"{ref.kind}/{ref.name}", "namespace": namespace})

    async def _write_status(self, target: Plan, key: Key, custom: Mapping[str, Any]) -> None:
        entry = self._cache.entry(CUSTOM, *key)
        metadata = custom["metadata"]
        wanted = {"apiVersion": API_VERSION, "kind": KIND, "status": target.status}
        if entry is None or entry.uid != metadata["uid"] or not differs(wanted, entry.obj, entry.fields):
            return
        # The uid makes the API server refuse a status meant for a namesake that has been deleted since.
        identity = {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]}
        try:
            stored = await self._cluster.apply_status(CUSTOM, {**wanted, "metadata": identity}, STATUS_MANAGER)
        except (NotFound, Conflict):
            return
        self._cache.put(CUSTOM, stored)
        if self._record is not None and target.events:
            await self._record(stored, target.events)


def _is_ours(entry: Entry, uid: str) -> bool:
    """Controlled by this resource; or by nobody, but applied by us before somebody removed the reference."""
    owner = controller(entry.obj)
    return owner["uid"] == uid if owner is not None else entry.fields is not None


def _state(obj: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str, str]:
    return digest(obj), digest(view(obj, stored))

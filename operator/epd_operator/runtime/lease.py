"""Which of two replicas acts: a Lease, held by client-go's rule.

The tricky idea: clocks of two machines are never compared. A candidate notes *when it saw* the record change, on its
own monotonic clock, and takes over when it has seen no change for the lease's duration. The holder counts from the
moment it *sent* the last renewal that succeeded, and stops earlier (renew deadline) than any candidate may start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from epd_operator.kube import ApiError, Conflict, NotFound, unfenced
from epd_operator.kube.kind import LEASE, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)


class Leases(Protocol):
    """The calls that an election needs."""

    async def get(self, kind: Kind, namespace: str | None, name: str, seconds: float) -> dict[str, Any]:
        """Read the Lease."""

    async def create(self, kind: Kind, obj: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Create it; Conflict when it exists."""

    async def replace(self, kind: Kind, obj: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Replace it; Conflict when it changed."""


@dataclass(frozen=True)
class Timing:
    """Seconds: how long a record lives, when a holder gives up, and how often both try."""

    duration: float = 8.0
    deadline: float = 5.0
    retry: float = 1.0


@dataclass(frozen=True)
class Sight:
    """The record as last seen.

    Attributes:
        lease: The Lease object; None when there is none.
        at: Local monotonic time at which this content was first seen.
    """

    lease: Mapping[str, Any] | None
    at: float

    @property
    def spec(self) -> Mapping[str, Any]:
        """The Lease's spec."""
        return (self.lease or {}).get("spec") or {}

    def refreshed(self, lease: Mapping[str, Any] | None, now: float) -> Sight:
        """The sight after reading `lease`: its age starts again only when the record changed."""
        fresh = replace(self, lease=lease)
        return fresh if lease is not None and fresh.spec == self.spec else replace(fresh, at=now)

    def free(self, identity: str, now: float) -> bool:
        """Whether `identity` may take the lease: it is free, its own, or unchanged for its whole duration."""
        holder = self.spec.get("holderIdentity")
        if not holder or holder == identity:
            return True
        return now - self.at >= float(self.spec.get("leaseDurationSeconds") or 0)


NEVER: Final = float("-inf")


class Election:
    """One candidate.

    Args:
        leases: Transport to the API server.
        namespace: Where the Lease lives.
        name: Its name.
        identity: Who we are; must differ between processes, also between two runs of one pod.
        timing: See `Timing`.
        clock: Monotonic seconds.
        changed: Called with True on winning, and with False on losing or releasing.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._leases = leases
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._timing = timing or Timing()
        self._clock = clock
        self._changed = changed
        self._sight = Sight(None, NEVER)
        self._renewed = NEVER
        self._stale = True
        self.polled = clock()
        """When the API server last answered us about the Lease."""

    def holds(self) -> bool:
        """Whether we may write right now; false from the renew deadline on, before anybody else can win."""
        return self._clock() - self._renewed < self._timing.deadline

    async def acquire(self) -> None:
        """Return when the lease is ours; errors are logged and tried again."""
        logged = None
        while not await self._try():
            holder = self._sight.spec.get("holderIdentity")
            if holder != logged:
                logged = holder
                log.info("standing by", extra={"holder": holder})
            await asyncio.sleep(self._timing.retry)
        self._changed(True)

    async def hold(self) -> None:
        """Renew until that fails for the renew deadline, or somebody else has taken the lease; then return."""
        while (left := self._renewed + self._timing.deadline - self._clock()) > 0:
            try:
                async with asyncio.timeout(left):
                    await asyncio.sleep(self._timing.retry)
                    renewed = await self._try()
            except TimeoutError:
                continue
            if not renewed and self._taken():
                break
        self._renewed = NEVER
        self._changed(False)

    async def release(self) -> None:
        """Give the lease up at once, so that the other replica need not wait; best effort."""
        if not self.holds():
            return
        self._renewed = NEVER
        self._changed(False)
        assert self._sight.lease is not None
        spec = {**self._sight.spec, "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
        try:
            with unfenced():
                await self._leases.replace(LEASE, {**self._sight.lease, "spec": spec}, self._timing.retry)
        except ApiError as error:
            log.warning("lease not released", extra={"error": str(error)})

    def _taken(self) -> bool:
        holder = self._sight.spec.get("holderIdentity")
        return self._sight.lease is not None and holder != self.identity

    async def _try(self) -> bool:
        """Read, then take or renew when allowed; False when not, or on any error."""
        try:
            with unfenced():
                return await self._round()
        except Conflict:
            return False  # the other candidate was faster; the next round reads what it wrote
        except ApiError as error:
            log.warning("lease not reached", extra={"error": str(error)})
            return False

    async def _round(self) -> bool:
        # The holder writes on top of what it wrote last; only a refusal makes it look.
        lease = self._sight.lease if self.holds() and not self._stale else await self._read()
        now = self._clock()
        if not self._sight.free(self.identity, now):
            return False
        seconds = self._timing.retry * 2
        if lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            wanted = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
            stored = await self._leases.create(LEASE, {**wanted, "spec": self._record({})}, seconds)
        else:
            self._stale = True  # until the answer proves otherwise
            stored = await self._leases.replace(LEASE, {**lease, "spec": self._record(self._sight.spec)}, seconds)
        self._stale = False
        self.polled = self._clock()
        self._sight = Sight(stored, self.polled)
        self._renewed = now
        return True

    async def _read(self) -> Mapping[str, Any] | None:
        try:
            lease: Mapping[str, Any] | None = await self._leases.get(
                LEASE, self._namespace, self._name, self._timing.retry * 2
            )
        except NotFound:
            lease = None
        self.polled = self._clock()
        self._sight = self._sight.refreshed(lease, self.polled)
        return lease

    def _record(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        now = _now()
        mine = spec.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._timing.duration)),
            "acquireTime": spec.get("acquireTime", now) if mine else now,
            "renewTime": now,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (0 if mine or not spec else 1),
        }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

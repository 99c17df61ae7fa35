"""Whether the pool of windows is as declared: its servers as Kubernetes sees them, and its use as prefill pods tell it.

The tricky idea: a pool that is ready is not yet of use. A server starts empty, so for as long as a window lasts the
conversations of before are replayed: that is no fault, and it ends by itself, so the condition is True and says until
when. A word of a prefill pod may be as old as its last request, and then speaks of the server before this one; so for
a while after a start such words do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from epd_operator.plan.conditions.diagnosis import is_ready, one_line
from epd_operator.plan.conditions.health import Verdict, component_of
from epd_operator.plan.conditions.reason import FAULTS, Reason
from epd_operator.plan.conditions.refusal import not_ours
from epd_operator.plan.observation import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from epd_operator.plan.conditions.health import Health
    from epd_operator.plan.observation import Object, Observed
    from epd_operator.plan.router_state import Report

STALE: Final = timedelta(seconds=630)
"""What an idle prefill pod last met is told for ten minutes, and takes half a minute to be read."""

_MISCONFIGURED: Final = "Misconfigured"
_CAUSES: Final[Mapping[str, str]] = {
    "Unreachable": "its lookups and windows get no answer that counts: a NetworkPolicy in between, names that do not "
    "resolve, or servers slower than spec.swaPool.deadline",
    "Full": "the pool refuses every window: raise spec.swaPool.memory or stores, or lower its ttl",
    "NoHits": "for an hour windows were stored and looked up, and none was found: turns that come back after "
    "spec.swaPool.ttl, memory for fewer windows than conversations, prompts whose beginnings change from turn to turn, "
    "or in process a router that sends each turn to another pod",
    _MISCONFIGURED: "it cannot follow the file that says where the pool is: its image may be older than the operator",
}
"""What a prefill pod's word comes from, and what to do."""


@dataclass(frozen=True)
class Pool:
    """What `SwaPoolReady` is judged on.

    Attributes:
        ttl: How long a window lasts.
        healths: What each kind of server has come to, by program; none in process.
        revision: Of the prefill pods that should serve.
        objects: `Kind/name` of each object that it is made of. Engines follow the file and the address of these names
            whoever made them.
    """

    ttl: timedelta
    healths: Mapping[str, Health]
    revision: str
    objects: frozenset[str]


@dataclass(frozen=True)
class Outlook:
    """A verdict, and when time alone will change it.

    Attributes:
        verdict: The condition.
        until: When it must be judged again, if nothing happens before; None when never.
    """

    verdict: Verdict
    until: datetime | None = None


def outlook(pool: Pool, observed: Observed, previous: Mapping[str, Any] | None) -> Outlook:
    """Judge a pool.

    Args:
        pool: What it has come to.
        observed: The cluster.
        previous: The condition as it stands. What prefill pods told is kept until all of them were asked again by a
            registrar that answers.
    """
    behind = _behind(pool, observed)
    if behind is not None:
        return Outlook(behind)
    born = max(_starts(pool, observed.pods), default=None)
    message = _said(observed.reports, pool.revision)
    words = {pod: word for pod, word in message.items() if word}
    heard_at = None if born is None or observed.now >= born[0] + STALE else born[0] + STALE
    counted = {pod: word for pod, word in words.items() if heard_at is None or word == _MISCONFIGURED}
    again = [heard_at] if heard_at is not None and counted != words else []
    if counted:
        return Outlook(Verdict(False, Reason.DEGRADED, _told(counted)), *again)
    silent = not message or None in message.values()
    if silent and previous is not None and previous.get("reason") == Reason.DEGRADED:
        return Outlook(Verdict.of(previous))
    if born is not None and observed.now < (warm := born[0] + pool.ttl):
        text = (
            f"pod {born[1]} started empty at {_text(born[0])}: conversations whose window was in its place are "
            f"replayed until {_text(warm)} at the latest"
        )
        return Outlook(Verdict(True, Reason.WARMING, text), min([warm, *again]))
    return Outlook(Verdict(True, Reason.AT_DESIRED, _as_declared(pool)), *again)


def _behind(pool: Pool, observed: Observed) -> Verdict | None:
    """What is not ours or not ready; the reason is that of a server with a fault, else of the first."""
    foreign = pool.objects.intersection(observed.conflicts)
    if foreign:
        return Verdict(False, Reason.NAME_CONFLICT, not_ours(foreign))
    behind = {program: health for program, health in pool.healths.items() if not health.verdict.status}
    if not behind:
        return None
    order = sorted(behind, key=lambda program: behind[program].verdict.reason not in FAULTS)
    waits = [
        f"{program}: {'; '.join([behind[program].verdict.message, *_waiting(behind[program], observed)])}"
        for program in order
    ]
    return Verdict(False, behind[order[0]].verdict.reason, "; ".join(waits))


def _waiting(health: Health, observed: Observed) -> Iterator[str]:
    """The pods that are not ready and of which nothing else is known."""
    if health.verdict.reason != Reason.STARTING:
        return
    for pod in sorted(observed.pods, key=name_of):
        if component_of(pod) == health.target.part and not is_ready(pod) and not _leaves(pod):
            yield f"pod {name_of(pod)} is not ready"


def _leaves(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _starts(pool: Pool, pods: Sequence[Object]) -> Iterator[tuple[datetime, str]]:
    """When each server began with empty memory: a container that is restarted has lost what it had as well."""
    servers = {health.target.part for health in pool.healths.values()}
    for pod in pods:
        if component_of(pod) in servers and not _leaves(pod):
            for container in pod.get("status", {}).get("containerStatuses") or ():
                since = ((container.get("state") or {}).get("running") or {}).get("startedAt")
                if since:
                    yield datetime.fromisoformat(since), name_of(pod)


def _said(reports: Sequence[Report], revision: str) -> dict[str, str | None]:
    """What is wrong with the pool for each prefill pod; empty when nothing is, None when no registrar knows yet."""
    message: dict[str, str | None] = {}
    for report in reports:
        for worker in report.workers:
            if worker.revision == revision:
                word = None if worker.swa_pool is None else worker.swa_pool.fault
                known = message.get(worker.pod)
                message[worker.pod] = known if known or word is None else word
    return message


def _told(words: Mapping[str, str]) -> str:
    reported = []
    for word in sorted(set(words.values())):
        pods = ", ".join(sorted(pod for pod, message in words.items() if message == word))
        reported.append(f"{one_line(f'{word} for {pods}')}: {_CAUSES.get(word, 'no more is known')}")
    return "; ".join(reported)


def _as_declared(pool: Pool) -> str:
    if not pool.healths:
        return "each prefill pod keeps its own windows"
    return "; ".join(f"{program}: {health.verdict.message}" for program, health in pool.healths.items())


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""What may be deleted now: old revisions serve until the new set is ready *and* the registrars route to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epd_operator.api import names
from epd_operator.plan.conditions.health import component_of
from epd_operator.plan.observation import WORKLOADS, labels, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epd_operator.plan.conditions.health import Health
    from epd_operator.plan.observation import Object, Observed
    from epd_operator.plan.router_state import RouterState

_SERVING = frozenset({*WORKLOADS, "ControllerRevision"})
_PER_ROLE = frozenset({"PodDisruptionBudget", "NetworkPolicy"})
_KINDS = _SERVING | _PER_ROLE | {"ConfigMap", "Service", "ServiceAccount", "Role", "RoleBinding"}


@dataclass(frozen=True)
class Ref:
    """A live object to delete; `uid` is a precondition of the deletion."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class Leftovers:
    """Live children that the plan no longer wants.

    Attributes:
        prune: To be deleted now.
        held: Objects of earlier revisions that go on serving until the new set is routable.
    """

    prune: tuple[Ref, ...]
    held: tuple[Ref, ...]


def leftovers(
    owner_uid: str,
    planned: Sequence[Object],
    observed: Observed,
    healths: Mapping[str, Health],
    *,
    policies: bool,
) -> Leftovers:
    """Sort the live children that are not planned into those to delete and those to hold.

    Args:
        owner_uid: Uid of the custom resource; objects without its controller reference are left alone.
        planned: Every object of the plan.
        observed: The cluster.
        healths: The state of each part.
        policies: Whether the spec asks for NetworkPolicies; when not, they go at once.
    """
    wanted = {(obj["kind"], name_of(obj)) for obj in planned}
    stale = [c for c in observed.children if _ours(c, owner_uid) and (c["kind"], name_of(c)) not in wanted]
    stale.sort(key=lambda child: (child["kind"], name_of(child)))
    if _set_serves(healths, observed):
        return Leftovers(tuple(map(_ref, stale)), ())
    # A role that left the spec keeps its budget and policy for as long as its pods.
    pairs = _pairs(observed.children)
    serving = {name_of(child): component_of(child) for child in stale if _has_served(child) and _key(child) in pairs}

    def holds(child: Object) -> bool:
        if child["kind"] in _SERVING:
            return name_of(child) in serving and component_of(child) in names.ROLES
        unwanted = child["kind"] == "NetworkPolicy" and not policies
        return child["kind"] in _PER_ROLE and component_of(child) in serving.values() and not unwanted

    return Leftovers(
        tuple(_ref(child) for child in stale if not holds(child)),
        tuple(_ref(child) for child in stale if holds(child)),
    )


def _ours(child: Object, owner_uid: str) -> bool:
    metadata = child["metadata"]
    owners = metadata.get("ownerReferences") or ()
    return (
        child.get("kind") in _KINDS
        and labels(child).get(names.LABEL_MANAGED_BY) == names.MANAGER
        and any(owner.get("uid") == owner_uid and owner.get("controller") for owner in owners)
        and not metadata.get("deletionTimestamp")
    )


def _has_served(child: Object) -> bool:
    """Whether what makes pods has ready ones, or once had all of them.

    A LeaderWorkerSet lists the condition `Available` from the first time on that it was; later it only turns over. The
    second half keeps a set that is unready for a moment; without the first, a set that was given up before it ever
    came up would keep the accelerators that the next one waits for.
    """
    status = child.get("status") or {}
    complete = any(
        c.get("reason") == "NewReplicaSetAvailable" if child["kind"] == "Deployment" else c.get("type") == "Available"
        for c in status.get("conditions") or ()
    )
    return child["kind"] in WORKLOADS and (complete or bool(status.get("readyReplicas")))


def _key(child: Object) -> str:
    return labels(child).get(names.LABEL_COMPAT_KEY, "")


def _pairs(children: Sequence[Object]) -> set[str]:
    """Compatibility keys of which both prefill and decode have served.

    Half a set serves nobody, and its pods may hold the accelerators that the set that follows it waits for.
    """
    prefill, decode = (
        {_key(child) for child in children if component_of(child) == role and _has_served(child)}
        for role in ("prefill", "decode")
    )
    return prefill & decode


def _ref(child: Object) -> Ref:
    return Ref(child["apiVersion"], child["kind"], name_of(child), str(child["metadata"].get("uid", "")))


def _set_serves(healths: Mapping[str, Health], observed: Observed) -> bool:
    """Whether every role of the new set is ready, and every ready router routes to all of it."""
    roles: dict[str, Health] = {part: healths[part] for part in names.ROLES if part in healths}
    if not all(health.assessment.status for health in roles.values()):
        return False
    if healths[names.ROUTER].target.desired == 0 or any(
        roles[part].target.desired == 0 for part in ("prefill", "decode")
    ):
        return True  # nothing will ever be routed: there is no confirmation to wait for
    router_states = [state for state in observed.router_states if state.router.ready]
    return bool(router_states) and all(_routes(state, roles, observed.pods) for state in router_states)


def _routes(state: RouterState, roles: Mapping[str, Health], pods: Sequence[Object]) -> bool:
    revision_of = {name_of(pod): labels(pod).get(names.LABEL_REVISION, "") for pod in pods}
    serving = [(worker.role, worker.revision) for worker in state.workers if worker.routable]
    serving += [("encode", revision_of.get(encoder.pod, "")) for encoder in state.encoders if not encoder.missing]
    return all(serving.count((part, health.target.revision)) >= health.target.desired for part, health in roles.items())

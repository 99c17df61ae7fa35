"""What the plan reads besides the resource itself: the release's settings and one view of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from epd_operator.plan.router_state import RouterState, read

if TYPE_CHECKING:
    from datetime import datetime

    from epd_operator.rules.advisory import Advisory

Object = Mapping[str, Any]

WORKLOADS: Final = ("Deployment", "LeaderWorkerSet")
"""Kinds that make engine pods: single ones, and groups of pods that are one engine."""


@dataclass(frozen=True)
class Settings:
    """What this operator installation adds to every plan.

    Attributes:
        router_image: Image of the router and registrar containers when `spec.router.image` is absent.
        worker_image: Image of the Reference engine when `spec.engine.image` is absent.
        version: Version of the operator; never part of a pod template.
        operator_namespace: Namespace whose pods may read the registrars.
        rdma_resource: Name under which this cluster's device plugin offers RDMA devices.
        advisories: Engine builds known to misbehave.
    """

    router_image: str
    worker_image: str
    version: str
    operator_namespace: str = "epd-system"
    rdma_resource: str = "rdma/ib"
    advisories: tuple[Advisory, ...] = ()


@dataclass(frozen=True)
class Observed:
    """One consistent-enough view of the cluster, taken before planning.

    Attributes:
        children: Every live object that carries our label and an ownerReference to this resource, of any kind.
        pods: Pods labelled with this resource's instance name.
        routers: Last `GET /state` document of each registrar that answered.
        conflicts: `Kind/name` of each foreign object that holds the name of a child.
        failures: Errors of the last attempt to apply, one line each (quota, forbidden, invalid).
        now: Current time, UTC, with time zone.
    """

    children: Sequence[Object]
    pods: Sequence[Object]
    routers: Sequence[Object]
    conflicts: Sequence[str]
    failures: Sequence[str]
    now: datetime

    @cached_property
    def router_states(self) -> tuple[RouterState, ...]:
        """What `routers` say, as far as it makes sense."""
        return read(self.routers)


def labels(obj: Object) -> Mapping[str, str]:
    """Labels of a Kubernetes object; empty when it has none."""
    return obj.get("metadata", {}).get("labels") or {}


def of_kind(children: Sequence[Object], kind: str) -> list[Object]:
    """The children of one kind, by name."""
    return sorted((child for child in children if child.get("kind") == kind), key=name_of)


def workloads(children: Sequence[Object]) -> list[Object]:
    """The children that make pods, by name."""
    return sorted((child for child in children if child.get("kind") in WORKLOADS), key=name_of)


def name_of(obj: Object) -> str:
    """`metadata.name` of a Kubernetes object."""
    return str(obj["metadata"]["name"])

"""Every permission the operator uses, as data: the chart's roles are compared with this table.

A row is one rule of RBAC with the reason for it. `scope` says which role carries it: `watched` goes into the role of
each watched namespace (or the ClusterRole when all are watched), `own` into the role of the operator's own namespace.
Nothing else is read: no Secrets, no nodes, no namespaces, no CRDs (kopf's scanning is off, discovery is open to every
service account). Of ConfigMaps only those with our label are listed and watched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from epd_operator.api.names import GROUP, PLURAL
from epd_operator.runtime.config import Config
from epd_operator.runtime.watch_scope import OWNED

WatchScope = Literal["watched", "own"]


@dataclass(frozen=True)
class Permission:
    """One rule.

    Attributes:
        group: API group; empty for the core group.
        resources: Plural names, with `/subresource` where it is one.
        verbs: RBAC verbs.
        why: What the operator does with them.
        names: ResourceNames; empty for all.
        scope: Which role carries the rule.
        implicit: Verbs that admission or the apply handler checks inside another request, so that they are needed
            although no audit log ever shows them.
    """

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()
    scope: WatchScope = "watched"
    implicit: tuple[str, ...] = ()


WATCH: Final = ("list", "watch")
OWN: Final = ("get", "list", "watch", "create", "patch", "delete")


def _owned() -> tuple[Permission, ...]:
    groups = sorted({kind.group for kind in OWNED})
    return tuple(
        Permission(
            group,
            tuple(sorted(kind.plural for kind in OWNED if kind.group == group)),
            OWN,
            "children: get tells a foreign object before the first apply; create and patch are server-side apply; "
            "delete prunes, with the uid as precondition",
            implicit=("create",),
        )
        for group in groups
    )


PERMISSIONS: Final[tuple[Permission, ...]] = (
    Permission(GROUP, (PLURAL,), WATCH, "the custom resources themselves; never written"),
    Permission(GROUP, (f"{PLURAL}/status",), ("patch",), "status, by server-side apply"),
    Permission(
        GROUP,
        (f"{PLURAL}/finalizers",),
        ("update",),
        "children carry blockOwnerDeletion; clusters with OwnerReferencesPermissionEnforcement ask for this",
        implicit=("update",),
    ),
    *_owned(),
    Permission(
        "",
        ("pods",),
        WATCH,
        "readiness and restarts of the pods; also granted onwards to the router's role, which no one may grant "
        "without holding it",
    ),
    Permission("events.k8s.io", ("events",), ("create",), "one Event when a condition turns over"),
    Permission(
        "coordination.k8s.io",
        ("leases",),
        ("create",),
        "the first Lease; create cannot be bound to a name",
        scope="own",
    ),
    Permission(
        "coordination.k8s.io",
        ("leases",),
        ("get", "update", "list", "watch"),
        "leadership; the watch on it proves that watching works",
        names=(Config().lease,),
        scope="own",
    ),
)

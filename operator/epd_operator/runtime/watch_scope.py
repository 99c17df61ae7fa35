"""Which kinds the operator watches, in which namespaces, and how it names an object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from epd_operator.api.names import GROUP, KIND, MANAGED_SELECTOR, PLURAL, VERSION
from epd_operator.kube import kind as kinds
from epd_operator.kube.kind import Kind

CUSTOM: Final = Kind(GROUP, VERSION, PLURAL, KIND)
OWNED: Final[tuple[Kind, ...]] = (
    kinds.DEPLOYMENT,
    kinds.LEADER_WORKER_SET,
    kinds.CONFIG_MAP,
    kinds.SERVICE,
    kinds.SERVICE_ACCOUNT,
    kinds.CONTROLLER_REVISION,
    kinds.DISRUPTION_BUDGET,
    kinds.NETWORK_POLICY,
    kinds.ROLE,
    kinds.ROLE_BINDING,
)
OPTIONAL: Final[tuple[Kind, ...]] = (kinds.LEADER_WORKER_SET,)
"""Kinds of an add-on that a cluster may lack."""
WATCHED: Final[tuple[Kind, ...]] = (CUSTOM, *(kind for kind in OWNED if kind not in OPTIONAL), kinds.POD)
"""Kinds that kopf watches."""
_BY_NAME: Final = {(kind.api_version, kind.kind): kind for kind in (*WATCHED, *OPTIONAL)}


class Key(NamedTuple):
    """Namespace and name of one custom resource: what the queue holds."""

    namespace: str
    name: str

    @property
    def text(self) -> str:
        """`namespace/name`, as logs and kubectl spell it."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class WatchScope:
    """Where to look.

    Attributes:
        namespaces: The watched namespaces; empty for the whole cluster.
    """

    namespaces: tuple[str, ...] = ()

    @property
    def lists(self) -> tuple[str | None, ...]:
        """Namespaces to list one by one; None stands for all at once."""
        return self.namespaces or (None,)


def selector(kind: Kind) -> str:
    """Server-side label selector: everything but custom resources is seen only when it is labelled as ours."""
    return "" if kind == CUSTOM else MANAGED_SELECTOR


def kind_of(obj: Any) -> Kind:
    """The kind of a planned or watched object.

    Raises:
        LookupError: The plan names a kind that is neither watched nor granted by RBAC.
    """
    name = (obj["apiVersion"], obj["kind"])
    if name not in _BY_NAME:
        raise LookupError(
            f"{name[0]} {name[1]} is not in runtime.watch_scope.OWNED: add it there and to the permissions"
        )
    return _BY_NAME[name]

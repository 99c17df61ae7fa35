"""Which kinds exist and where they live under the API server's root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Kind:
    """One kind of object in one served version.

    Attributes:
        group: API group; empty for the core group.
        version: Served version.
        plural: Name in paths and in RBAC rules.
        kind: Name in objects.
        namespaced: Whether objects live in a namespace.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`group/version`, or the bare version for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Path under the server's root; without a name the collection, without a namespace all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join(part for part in (f"{root}{scope}/{self.plural}", name, subresource) if part)

    @property
    def resource(self) -> str:
        """`plural.group`, as kubectl and RBAC messages spell it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


POD: Final = Kind("", "v1", "pods", "Pod")
SERVICE: Final = Kind("", "v1", "services", "Service")
CONFIG_MAP: Final = Kind("", "v1", "configmaps", "ConfigMap")
SERVICE_ACCOUNT: Final = Kind("", "v1", "serviceaccounts", "ServiceAccount")
DEPLOYMENT: Final = Kind("apps", "v1", "deployments", "Deployment")
LEADER_WORKER_SET: Final = Kind("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
CONTROLLER_REVISION: Final = Kind("apps", "v1", "controllerrevisions", "ControllerRevision")
DISRUPTION_BUDGET: Final = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICY: Final = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ROLE: Final = Kind("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
EVENT: Final = Kind("events.k8s.io", "v1", "events", "Event")
LEASE: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease")

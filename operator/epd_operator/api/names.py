"""Every name that the operator, the CLI and the tests must spell alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP: Final = "serving.epd.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "DeepSeekV41Deployment"
LIST_KIND: Final = f"{KIND}List"
PLURAL: Final = "deepseekv41deployments"
SINGULAR: Final = "deepseekv41deployment"
SHORT_NAME: Final = "dsv41"
CRD_NAME: Final = f"{PLURAL}.{GROUP}"

MANAGER: Final = "epd-operator"
STATUS_MANAGER: Final = "epd-operator-status"

RoleName: TypeAlias = Literal["encode", "prefill", "decode"]
ROLES: Final[tuple[RoleName, ...]] = ("encode", "prefill", "decode")
ROUTER: Final = "router"
COMPONENTS: Final[tuple[str, ...]] = (*ROLES, ROUTER)
SWA_POOL: Final = "swa-pool"
"""Component of the one server of a pool: Valkey, or the master of Mooncake's stores."""
SWA_POOL_STORE: Final = "swa-pool-store"
"""Component of Mooncake's stores."""

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_REVISION: Final = f"{GROUP}/revision"
LABEL_COMPAT_KEY: Final = f"{GROUP}/compat-key"

APP: Final = "deepseek-v41"
PART_OF: Final = "epd"
MANAGED_SELECTOR: Final = f"{LABEL_MANAGED_BY}={MANAGER}"

MAX_NAME: Final = 40
"""Characters of metadata.name: `<name>-prefill-<8 hex>` then stays below 63 with room for what Kubernetes adds."""
MAX_GROUP_NAME: Final = 31
"""The same where a role spans nodes: `<name>-prefill-<8 hex>-<up to 3 digits>` names the StatefulSet of a group, and a
label of its pods holds that name and a hash of up to 11 characters."""

HTTP_PORT: Final = 30000
BOOTSTRAP_PORT: Final = 8998
ENCODER_PORT: Final = 8997
CLIENT_PORT: Final = 8000
ROUTER_METRICS_PORT: Final = 29000
REGISTRAR_PORT: Final = 8081
OPERATOR_METRICS_PORT: Final = 8080
OPERATOR_PROBES_PORT: Final = 8090
VALKEY_PORT: Final = 6379
MOONCAKE_PORT: Final = 50051
MOONCAKE_METRICS_PORT: Final = 9003
MOONCAKE_CLIENT_PORTS: Final = (12300, 12399)
"""First and last of the numbers that tell Mooncake stores of one address apart; nothing listens there."""
MOONCAKE_TRANSFER_PORTS: Final = (15000, 15099)
"""First and last port on which a Mooncake store moves bytes."""
SWA_POOL_HEALTH_PORT: Final = 8088
"""Port on which a pool's server answers `/health` and `/metrics`."""

SWA_POOL_FOLDER: Final = "/etc/epd/swa-pool"
"""Where an engine's pod finds the configuration of its pool."""
SWA_POOL_FILE: Final = "pool.json"
"""Name of the file there, and of the key of the ConfigMap."""
PLUGIN_FOLDER: Final = "/opt/epd/plugin"
"""Where a plugin image holds the files of its plugins, and where the engine's container finds them."""


def workload(name: str, role: str, revision: str) -> str:
    """Name of a role's Deployment and of the ControllerRevision that stores its pod template."""
    return f"{name}-{role}-{revision}"


def component(name: str, part: str) -> str:
    """Name of the one object of its kind for a role or the router: budget, policy, router Deployment."""
    return f"{name}-{part}"


def router(name: str) -> str:
    """Name of the router's Deployment, ServiceAccount, Role and RoleBinding."""
    return component(name, ROUTER)


def client_service(name: str) -> str:
    """Name of the Service that clients talk to."""
    return name


def bootstrap_service(name: str) -> str:
    """Name of the headless Service over the prefill pods."""
    return component(name, "prefill")


def swa_pool(name: str) -> str:
    """Name of the pool's ConfigMap, and of the Deployment and Service of Valkey or of Mooncake's master."""
    return component(name, SWA_POOL)


def swa_pool_store(name: str) -> str:
    """Name of the Deployment of Mooncake's stores."""
    return component(name, SWA_POOL_STORE)


def tenant(namespace: str, name: str) -> str:
    """What keeps the windows and stored pages of one deployment apart from those of every other."""
    return f"{namespace}/{name}"


def engine_account(name: str) -> str:
    """Name of the token-less ServiceAccount of the engine pods."""
    return component(name, "engine")


def selector(name: str, part: str | None = None) -> dict[str, str]:
    """Labels that pick the pods of one deployment, or of one of its parts; they never change over its life."""
    labels = {LABEL_INSTANCE: name, LABEL_MANAGED_BY: MANAGER}
    return labels if part is None else {**labels, LABEL_COMPONENT: part}


def labels(name: str, part: str, *, revision: str = "", compat_key: str = "") -> dict[str, str]:
    """The complete label set of a child or a pod: an allow-list, nothing is copied from the custom resource.

    Args:
        name: metadata.name of the custom resource.
        part: One of `COMPONENTS`, or another name for objects outside of these parts.
        revision: 8 hex digits of the role's revision; left out when empty.
        compat_key: 16 hex digits; left out when empty (the router has none).
    """
    result = {LABEL_NAME: APP, LABEL_PART_OF: PART_OF, **selector(name, part)}
    if part in ROLES:
        result[LABEL_ROLE] = part
    if revision:
        result[LABEL_REVISION] = revision
    if compat_key:
        result[LABEL_COMPAT_KEY] = compat_key
    return result


def owner_reference(name: str, uid: str) -> Mapping[str, object]:
    """The controller reference that makes the garbage collector delete a child with its custom resource."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }

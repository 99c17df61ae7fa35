"""Computed defaults: what a spec means once the engine's profile has filled in what the user left out."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from epd_operator.api import duration, names, quantity
from epd_operator.api.names import BOOTSTRAP_PORT, RoleName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.api.deployment import DeepSeekV41Deployment, Spec
    from epd_operator.api.pod import PodOverrides, PodPlacement
    from epd_operator.api.role import Role, SecretKey
    from epd_operator.api.swa_pool import PoolMode, SwaPool
    from epd_operator.engines.profile import Facts, Profile

SHM_MIB = 32 * 1024
SHM = "32Gi"
MIB = 2**20
ROUTER_CPU = "1"
ROUTER_MEMORY = "512Mi"
ROUTER_TIMEOUT_SECONDS = 1800
POOL_MEMORY = "8Gi"
IN_PROCESS_MEMORY = "256Mi"
POOL_TTL = "300s"
POOL_DEADLINE = "20ms"


@dataclass(frozen=True)
class EffectiveRole:
    """One declared role with nothing left open.

    Attributes:
        replicas: Pods, or groups of pods; 1 when the user gave no count.
        nodes: Pods of one engine; above 1 they form a group.
        cpu: Request, a quantity.
        memory: Request and limit, a quantity.
        gpu: GPUs of a pod.
        shm: Size of /dev/shm, a quantity; None for what the container runtime gives.
        rdma: RDMA devices of a pod.
        args: The user's flags, overlaid with what other fields imply; the engine has its own defaults for the rest.
        host_network: The pods use their node's network.
        startup_minutes: Budget of the startup probe.
        grace_seconds: terminationGracePeriodSeconds.
    """

    name: RoleName
    replicas: int
    nodes: int
    cpu: str
    memory: str
    gpu: int
    shm: str | None
    rdma: int
    args: Mapping[str, Any]
    env: Mapping[str, str]
    secret_env: Mapping[str, SecretKey]
    host_network: bool
    startup_minutes: int
    grace_seconds: int
    pod: PodOverrides


@dataclass(frozen=True)
class EffectiveSwaPool:
    """The pool of windows with nothing left open.

    Attributes:
        mode: `InProcess`, `Valkey` or `Mooncake`.
        memory: Windows in each server (Valkey: one; Mooncake: each store) or in each prefill pod, a quantity.
        memory_bytes: The same in bytes.
        stores: Servers that hold windows: Mooncake's stores, the one Valkey, none in process.
        ttl: Seconds that a window is kept.
        deadline: Seconds that a request waits for its window at most.
        pod: Placement of the pool's pods.
    """

    mode: PoolMode
    memory: str
    memory_bytes: int
    stores: int
    ttl: float
    deadline: float
    pod: PodPlacement


@dataclass(frozen=True)
class EffectiveRouter:
    """The router with nothing left open, except the image: None stands for the operator release's own."""

    replicas: int
    image: str | None
    prefill_policy: str
    decode_policy: str
    request_timeout_seconds: int
    max_concurrent_requests: int
    cpu: str
    memory: str
    service_type: str
    service_port: int
    service_annotations: Mapping[str, str]
    api_key: SecretKey | None


@dataclass(frozen=True)
class Effective:
    """A spec with nothing left open, except the image: None stands for the operator release's own.

    Attributes:
        facts: Values that the engine resolves it to.
        acknowledged: Ids of rules whose refusal the user overrides.
        fetches: Whether engine pods read from outside the cluster.
        roles: Declared roles only, in the order encode, prefill, decode.
        swa_pool: None when there is none.
        tenant: What keeps its windows and stored pages apart from those of other deployments.
    """

    name: str
    engine_type: str
    engine_version: str
    platform: str
    image: str | None
    image_pull_policy: str
    image_pull_secrets: tuple[str, ...]
    served_name: str
    model_path: str | None
    model_revision: str | None
    transfer_backend: str
    bootstrap_port: int
    facts: Facts
    acknowledged: tuple[str, ...]
    fetches: bool
    roles: Mapping[RoleName, EffectiveRole]
    router: EffectiveRouter
    network_policy: bool
    swa_pool: EffectiveSwaPool | None
    tenant: str

    @property
    def longest_grace_seconds(self) -> int:
        """The longest time any role gives its running requests to end."""
        return max(role.grace_seconds for role in self.roles.values())

    @property
    def host_network(self) -> bool:
        """Whether any role uses its nodes' network."""
        return any(role.host_network for role in self.roles.values())

    def published(self) -> dict[str, Any]:
        """The part that `status.effective` shows."""
        shm = {name: role.shm for name, role in self.roles.items() if role.shm is not None}
        shown = {
            "servedName": self.served_name,
            "contextLength": self.facts.context_length,
            "pageSize": self.facts.page_size,
            "replay": self.facts.replay,
            "kvLayout": self.facts.kv_layout,
            "shm": shm or None,
        }
        return {name: value for name, value in shown.items() if value is not None}


def effective(document: DeepSeekV41Deployment, profile: Profile) -> Effective:
    """Fill in what the user left out; never changes what the user wrote.

    Args:
        document: A parsed document whose spec the profile accepts.
        profile: Facts about the document's engine.
    """
    spec = document.spec
    roles = {name: _role(name, role, spec, profile) for name, role in spec.roles.declared().items()}
    args = {name: role.args for name, role in roles.items()}
    return Effective(
        name=document.metadata.name,
        engine_type=spec.engine.type,
        engine_version=spec.engine.version,
        platform=spec.engine.platform or profile.default_platform,
        image=spec.engine.image,
        image_pull_policy=spec.engine.image_pull_policy or "IfNotPresent",
        image_pull_secrets=tuple(secret.name for secret in spec.engine.image_pull_secrets),
        served_name=spec.model.served_name or document.metadata.name,
        model_path=spec.model.path,
        model_revision=spec.model.revision,
        transfer_backend=spec.transfer.backend or profile.default_transfer,
        bootstrap_port=spec.transfer.bootstrap_port or BOOTSTRAP_PORT,
        facts=profile.facts(spec, args),
        acknowledged=tuple(sorted(spec.engine.acknowledge)),
        fetches=profile.fetches(spec),
        roles=MappingProxyType(roles),
        router=_router(document),
        network_policy=spec.network_policy.enabled,
        swa_pool=_pool(spec.swa_pool),
        tenant=names.tenant(document.metadata.namespace, document.metadata.name),
    )


def _role(name: RoleName, role: Role, spec: Spec, profile: Profile) -> EffectiveRole:
    platform = spec.engine.platform or profile.default_platform
    default = profile.default_resources(name, platform)
    given = role.pod.termination_grace_period_seconds
    grace = profile.default_grace_seconds if given is None else given
    args = {**role.args, **profile.derived_args(name, spec, grace)}
    memory = role.resources.memory or default.memory
    gpu = role.resources.gpu
    if gpu is None:
        gpu = 0 if profile.hardware(platform).gpu is None else profile.gpus(args, role.nodes)
    return EffectiveRole(
        name=name,
        replicas=1 if role.replicas is None else role.replicas,
        nodes=role.nodes,
        cpu=role.resources.cpu or default.cpu,
        memory=memory,
        gpu=gpu,
        shm=role.resources.shm or (_shm(memory) if gpu else None),
        rdma=role.resources.rdma or 0,
        args=MappingProxyType(args),
        env=MappingProxyType(dict(role.env)),
        secret_env=MappingProxyType(dict(role.secret_env)),
        host_network=role.host_network,
        startup_minutes=role.startup_minutes or profile.default_startup_minutes,
        grace_seconds=grace,
        pod=role.pod,
    )


def _shm(memory: str) -> str:
    """Default size of /dev/shm, at most half of the memory that it counts against.

    The 64 MiB of a container runtime are too few for the ranks of several GPUs to talk through.
    """
    half = int((quantity.parse(memory) or 0) / 2 / MIB)
    return SHM if half >= SHM_MIB else f"{half}Mi"


def _router(document: DeepSeekV41Deployment) -> EffectiveRouter:
    router = document.spec.router
    return EffectiveRouter(
        replicas=1 if router.replicas is None else router.replicas,
        image=router.image,
        prefill_policy=router.policy.prefill or "cache_aware",
        decode_policy=router.policy.decode or "least_load",
        request_timeout_seconds=router.request_timeout_seconds or ROUTER_TIMEOUT_SECONDS,
        max_concurrent_requests=router.max_concurrent_requests or 0,
        cpu=router.resources.cpu or ROUTER_CPU,
        memory=router.resources.memory or ROUTER_MEMORY,
        service_type=router.service.type,
        service_port=router.service.port,
        service_annotations=MappingProxyType(dict(router.service.annotations)),
        api_key=router.api_key_secret,
    )


def _pool(pool: SwaPool) -> EffectiveSwaPool | None:
    if pool.mode is None or pool.mode == "Disabled":
        return None
    memory = pool.memory or (IN_PROCESS_MEMORY if pool.mode == "InProcess" else POOL_MEMORY)
    servers = {"InProcess": 0, "Valkey": 1}.get(pool.mode, pool.stores or 1)
    return EffectiveSwaPool(
        mode=pool.mode,
        memory=memory,
        memory_bytes=int(quantity.parse(memory) or 0),
        stores=servers,
        ttl=float(duration.parse(pool.ttl or POOL_TTL) or 0),
        deadline=float(duration.parse(pool.deadline or POOL_DEADLINE) or 0),
        pod=pool.pod,
    )

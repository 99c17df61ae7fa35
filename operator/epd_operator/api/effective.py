"""Computed defaults: what a spec means once the engine's profile has filled in what the user left out."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from epd_operator.api.names import BOOTSTRAP_PORT, RoleName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epd_operator.api.deployment import DeepSeekV41Deployment, Spec
    from epd_operator.api.pod import PodOverrides
    from epd_operator.api.role import Role, SecretKey
    from epd_operator.engines.profile import Profile

ROUTER_CPU = "1"
ROUTER_MEMORY = "512Mi"
ROUTER_TIMEOUT_SECONDS = 1800


@dataclass(frozen=True)
class EffectiveRole:
    """One declared role with nothing left open.

    Attributes:
        replicas: pods; 1 when the user gave no count.
        cpu: request, a quantity.
        memory: request and limit, a quantity.
        args: the profile's defaults for the role, overlaid with the user's, then with what other fields imply.
        startup_minutes: budget of the startup probe.
        grace_seconds: terminationGracePeriodSeconds.
    """

    name: RoleName
    replicas: int
    cpu: str
    memory: str
    args: Mapping[str, Any]
    env: Mapping[str, str]
    secret_env: Mapping[str, SecretKey]
    startup_minutes: int
    grace_seconds: int
    pod: PodOverrides


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
        page_size: tokens in a key/value page, as prefill and decode resolve it.
        context_length: tokens of prompt plus answer, the smaller of prefill and decode.
        roles: declared roles only, in the order encode, prefill, decode.
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
    page_size: int
    context_length: int
    roles: Mapping[RoleName, EffectiveRole]
    router: EffectiveRouter
    network_policy: bool

    @property
    def longest_grace_seconds(self) -> int:
        """The longest time any role gives its running requests to end."""
        return max(role.grace_seconds for role in self.roles.values())

    def published(self) -> dict[str, Any]:
        """The part that `status.effective` shows."""
        return {
            "servedName": self.served_name,
            "contextLength": self.context_length,
            "pageSize": self.page_size,
        }


def effective(document: DeepSeekV41Deployment, profile: Profile) -> Effective:
    """Fill in what the user left out; never changes what the user wrote.

    Args:
        document: a parsed document whose spec the profile accepts.
        profile: facts about the document's engine.
    """
    spec = document.spec
    roles = {name: _role(name, role, spec, profile) for name, role in spec.roles.declared().items()}
    serving = [roles["prefill"].args, roles["decode"].args]
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
        page_size=profile.page_size(serving[0]),
        context_length=min(profile.context_length(args) for args in serving),
        roles=MappingProxyType(roles),
        router=_router(document),
        network_policy=spec.network_policy.enabled,
    )


def _role(name: RoleName, role: Role, spec: Spec, profile: Profile) -> EffectiveRole:
    default = profile.default_resources(name)
    given = role.pod.termination_grace_period_seconds
    grace = profile.default_grace_seconds if given is None else given
    derived = profile.derived_args(name, spec, grace)
    return EffectiveRole(
        name=name,
        replicas=1 if role.replicas is None else role.replicas,
        cpu=role.resources.cpu or default.cpu,
        memory=role.resources.memory or default.memory,
        args=MappingProxyType({**profile.default_args(name), **role.args, **derived}),
        env=MappingProxyType(dict(role.env)),
        secret_env=MappingProxyType(dict(role.secret_env)),
        startup_minutes=role.startup_minutes or profile.default_startup_minutes,
        grace_seconds=grace,
        pod=role.pod,
    )


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

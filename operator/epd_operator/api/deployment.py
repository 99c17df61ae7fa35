"""DeepSeekV41Deployment as a user writes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Field

from epd_operator.api.marker import CelRule, ListType
from epd_operator.api.names import MAX_GROUP_NAME, MAX_NAME, ROLES
from epd_operator.api.role import Resources, Roles, SecretKey
from epd_operator.api.scalar import (
    PRINTABLE,
    AnnotationMap,
    Base,
    HighPort,
    ImageReference,
    ObjectName,
    PluginName,
    Port,
    RelativePath,
    Replicas,
    RuleId,
)
from epd_operator.api.swa_pool import SwaPool
from epd_operator.platform import Platform  # noqa: TC001 - pydantic reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Mapping

EngineType: TypeAlias = Literal["SGLang", "Reference"]
Policy: TypeAlias = Literal[
    "random", "round_robin", "cache_aware", "power_of_two", "least_load", "consistent_hashing", "prefix_hash"
]


def _every_role(roles: str, holds: str) -> str:
    """CEL that asks something of each declared role; a list of them would mix types, which CEL refuses.

    Args:
        roles: The object that holds the roles.
        holds: What must hold of `{0}`.
    """
    encode, prefill, decode = (holds.format(f"{roles}.{name}") for name in ROLES)
    return f"({prefill} && {decode} && (!has({roles}.encode) || {encode}))"


def _needs_a_cpu_only(role: Mapping[str, Any]) -> bool:
    resources = role.get("resources", {})
    return role.get("nodes", 1) <= 1 and not resources.get("gpu") and not resources.get("rdma")


_TAKEN_PATH = "^/+(tmp|dev/+shm)/*$"


class Claim(Base):
    """Weights on a PersistentVolumeClaim of the same namespace."""

    claim_name: ObjectName
    """Name of the claim."""
    sub_path: RelativePath = ""
    """Path inside the volume; its root when empty."""


class Artifact(Base):
    """Weights in an OCI image, mounted as read-only files."""

    reference: ImageReference
    """Image reference; a digest is best."""


class ModelSource(Base):
    """Where the weights come from; exactly one."""

    persistent_volume_claim: Claim | None = None
    """A claim that holds the weights."""
    image: Artifact | None = None
    """An OCI image that holds the weights."""

    rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "has(self.persistentVolumeClaim) != has(self.image)",
            "spec.model.source has exactly one of persistentVolumeClaim and image: keep one, "
            "or leave source out when the engine's image holds the weights",
            lambda source: ("persistentVolumeClaim" in source) != ("image" in source),
        ),
    )


class Model(Base):
    """Which weights are served, and under which name."""

    path: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[!-9;-~]+$")] | None = None
    """Hub id (needs revision), or absolute path; Reference may leave it out: its image holds a checkpoint."""
    revision: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[-._/a-zA-Z0-9]+$")] | None = None
    """Identity of the weights, such as a commit; required for a hub id."""
    served_name: (
        Annotated[
            str,
            Field(min_length=1, max_length=253, pattern=PRINTABLE),
            CelRule(
                "!self.contains(':')",
                "spec.model.servedName must not contain ':', which separates a model from an adapter in requests: "
                "use '-' instead",
                lambda name: ":" not in name,
            ),
        ]
        | None
    ) = None
    """Model name that clients send; default metadata.name."""
    source: ModelSource | None = None
    """Where the weights come from; absent when the engine's image holds them."""
    weights_gib_per_gpu: Annotated[int, Field(ge=1, le=4096)] | None = Field(default=None, alias="weightsGiBPerGpu")
    """Size of the weights on one GPU, in GiB, rounded up; only used to check that memory suffices."""

    rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "!has(self.path) || self.path.startsWith('/') || has(self.revision)",
            "spec.model.revision is required when spec.model.path is a hub id (it does not start with '/'), so that "
            "every pod loads the same weights: add the commit, or give an absolute path",
            lambda model: "path" not in model or model["path"].startswith("/") or "revision" in model,
        ),
        CelRule(
            "!has(self.source) || (has(self.path) && self.path.startsWith('/'))",
            "spec.model.path must be an absolute path inside spec.model.source: add it, such as /model",
            lambda model: "source" not in model or model.get("path", "").startswith("/"),
        ),
        CelRule(
            f"!has(self.source) || !has(self.path) || !self.path.matches('{_TAKEN_PATH}')",
            "spec.model.path must not be /tmp or /dev/shm when spec.model.source is mounted there, because the "
            "operator mounts volumes of its own at both: use another, such as /model",
            lambda model: "source" not in model or not re.search(_TAKEN_PATH, model.get("path", "")),
        ),
    )


class PullSecret(Base):
    """A Secret of the same namespace with registry credentials."""

    name: ObjectName
    """Name of the Secret."""


class Engine(Base):
    """The server in the encode, prefill and decode pods."""

    type: Annotated[
        EngineType,
        CelRule(
            "self == oldSelf",
            "spec.engine.type cannot be changed: create a second DeepSeekV41Deployment with the other engine, "
            "move clients to it, then delete this one",
        ),
    ]
    """SGLang or Reference (a small CPU engine for demos and tests); cannot be changed."""
    version: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[-+._a-zA-Z0-9]+$")]
    """Engine version; names the profile of flags, ports and rules."""
    version_policy: Literal["Strict", "Nearest"] = "Strict"
    """Strict refuses a version without a profile; Nearest judges it by the next lower release that has one."""
    platform: Platform | None = None
    """Hardware that the pods run on; required for SGLang (cpu: a rehearsal with the plugin epd), cpu for Reference."""
    image: ImageReference | None = None
    """Engine image; required for SGLang, default for Reference: the operator release's."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When to pull the image; default IfNotPresent."""
    image_pull_secrets: Annotated[list[PullSecret], Field(max_length=8), ListType("map", ("name",))] = Field(
        default_factory=list
    )
    """Registry credentials for all pods of this deployment."""
    plugins: Annotated[list[PluginName], Field(max_length=8), ListType("set")] = Field(default_factory=list)
    """Engine plugins to load; SGLang 0.5.23 has epd: encode tier, pool of windows, replay reports."""
    plugin_image: ImageReference | None = None
    """Image with the plugins' files below /opt/epd/plugin; absent when the engine's image has them installed."""
    acknowledge: Annotated[list[RuleId], Field(max_length=64), ListType("set")] = Field(default_factory=list)
    """Ids of overridable rules whose refusal is accepted knowingly; status.acknowledged shows them."""
    gpu_memory_gib: Annotated[int, Field(ge=1, le=4096)] | None = Field(default=None, alias="gpuMemoryGiB")
    """Memory of one GPU in GiB; default by platform (141, 180, 288)."""

    rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "self.type != 'SGLang' || has(self.image)",
            "spec.engine.image is required for SGLang: give the image that holds spec.engine.version",
            lambda engine: engine["type"] != "SGLang" or "image" in engine,
        ),
        CelRule(
            "self.type != 'SGLang' || has(self.platform)",
            "spec.engine.platform is required for SGLang: give cuda-sm90, cuda-sm100 or hip-gfx950, or cpu to rehearse "
            "without a GPU",
            lambda engine: engine["type"] != "SGLang" or "platform" in engine,
        ),
        CelRule(
            "self.type != 'Reference' || !has(self.platform) || self.platform == 'cpu'",
            "spec.engine.platform must be cpu for Reference, which has no GPU code: leave it out",
            lambda engine: engine["type"] != "Reference" or engine.get("platform", "cpu") == "cpu",
        ),
        CelRule(
            "!has(self.pluginImage) || (has(self.plugins) && self.plugins.size() > 0)",
            "spec.engine.pluginImage is for spec.engine.plugins, which names none: name a plugin, such as epd, or "
            "remove the image",
            lambda engine: "pluginImage" not in engine or bool(engine.get("plugins")),
            lambda _engine: ["pluginImage"],
        ),
    )


class Transfer(Base):
    """How key/value pages travel from prefill to decode."""

    backend: Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[-_a-z0-9]+$")] | None = None
    """Transfer back end; default by engine (SGLang: mooncake, Reference: tcp)."""
    bootstrap_port: HighPort | None = None
    """Port on which prefill pods answer decode pods; default 8998."""
    checksum: bool = False
    """Check every transferred key/value page; costs time on both sides."""


class RouterPolicy(Base):
    """How the router picks a worker."""

    prefill: Policy | Literal["bucket"] | None = None
    """For prefill; default cache_aware."""
    decode: Policy | None = None
    """For decode; default least_load."""


class RouterService(Base):
    """The Service that clients talk to."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Kind of Service."""
    port: Port = 8000
    """Port of the Service."""
    annotations: AnnotationMap = Field(default_factory=dict)
    """Annotations of the Service, as load balancers want them."""


class Router(Base):
    """The router in front; its pods roll alone."""

    replicas: Replicas | None = None
    """Number of router pods; default 1."""
    image: ImageReference | None = None
    """Router image; default: the operator release's."""
    policy: RouterPolicy = RouterPolicy()
    """How workers are picked."""
    request_timeout_seconds: Annotated[int, Field(ge=1, le=86400)] | None = None
    """Longest time of one request; default 1800."""
    max_concurrent_requests: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Requests at once per router pod; default 0: the router's own limit."""
    resources: Resources = Resources()
    """CPU and memory of a router pod; default 1 and 512Mi."""
    service: RouterService = RouterService()
    """The Service that clients talk to."""
    api_key_secret: SecretKey | None = None
    """What clients must present as bearer token; mounted, never read by the operator."""


class NetworkPolicy(Base):
    """Who may talk to the pods."""

    enabled: bool = True
    """Create NetworkPolicies: clients reach the router only, roles talk among themselves."""


class Spec(Base):
    """What should run."""

    model: Model = Model()
    """Which weights are served, and under which name."""
    engine: Engine
    """The server in the encode, prefill and decode pods."""
    roles: Roles
    """The pods of each role."""
    transfer: Transfer = Transfer()
    """How key/value pages travel from prefill to decode."""
    swa_pool: SwaPool = SwaPool()
    """Where window keys and values wait for the next turn; its settings restart no pod, its mode prefill pods only."""
    router: Router = Router()
    """The router in front of the roles."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Who may talk to the pods."""

    rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "self.engine.type != 'SGLang' || (has(self.model) && has(self.model.path))",
            "spec.model.path is required for SGLang: give a hub id with spec.model.revision, or an absolute path",
            lambda spec: spec["engine"]["type"] != "SGLang" or "path" in spec.get("model", {}),
        ),
        CelRule(
            "self.engine.type != 'Reference' || "
            + _every_role(
                "self.roles",
                "({0}.nodes <= 1 && (!has({0}.resources) || ((!has({0}.resources.gpu) || {0}.resources.gpu == 0) && "
                "(!has({0}.resources.rdma) || {0}.resources.rdma == 0))))",
            ),
            "spec.roles.*.nodes, resources.gpu and resources.rdma are for SGLang: Reference runs on the CPU of one "
            "node, so leave them out",
            lambda spec: spec["engine"]["type"] != "Reference" or all(map(_needs_a_cpu_only, spec["roles"].values())),
        ),
    )


class Metadata(Base):
    """The part of metadata that the operator uses; everything else is the cluster's business."""

    model_config = ConfigDict(extra="ignore")

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0


class DeepSeekV41Deployment(Base):
    """DeepSeek-V4.1 as vision-encode, prefill and decode pods behind one router."""

    api_version: Literal["serving.epd.dev/v1alpha1"] = "serving.epd.dev/v1alpha1"
    kind: Literal["DeepSeekV41Deployment"] = "DeepSeekV41Deployment"
    metadata: Metadata
    spec: Spec
    """What should run."""

    rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            f"self.metadata.name.size() <= {MAX_NAME}",
            f"metadata.name must be at most {MAX_NAME} characters, because the names of all children are made from "
            "it: choose a shorter name",
            lambda document: len(document["metadata"]["name"]) <= MAX_NAME,
        ),
        CelRule(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must start with a letter and hold only a-z, 0-9 and '-', because it names a Service: "
            "choose such a name",
            lambda document: re.fullmatch(r"^[a-z]([-a-z0-9]*[a-z0-9])?$", document["metadata"]["name"]) is not None,
        ),
        CelRule(
            f"self.metadata.name.size() <= {MAX_GROUP_NAME} || {_every_role('self.spec.roles', '{0}.nodes <= 1')}",
            f"metadata.name must be at most {MAX_GROUP_NAME} characters when spec.roles.*.nodes is above 1, because "
            "the StatefulSets of a group carry longer names: choose a shorter name",
            lambda document: (
                len(document["metadata"]["name"]) <= MAX_GROUP_NAME
                or all(role.get("nodes", 1) <= 1 for role in document["spec"]["roles"].values())
            ),
        ),
    )

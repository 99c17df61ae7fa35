"""DeepSeekV41Deployment as a user writes it."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Field

from epd_operator.api.marker import ListType, Rule
from epd_operator.api.names import MAX_NAME, RoleName
from epd_operator.api.pod import PodOverrides
from epd_operator.api.scalar import (
    PRINTABLE,
    VARIABLE,
    AnnotationMap,
    Arguments,
    Base,
    HighPort,
    ImageReference,
    Key,
    ObjectName,
    Port,
    Quantity,
    RelativePath,
    Replicas,
    Value,
)

EngineType: TypeAlias = Literal["SGLang", "Reference"]
Platform: TypeAlias = Literal["cuda-sm90", "cuda-sm100", "hip-gfx950", "cpu"]
Policy: TypeAlias = Literal[
    "random", "round_robin", "cache_aware", "power_of_two", "least_load", "consistent_hashing", "prefix_hash"
]

_VARIABLES = Rule(
    f"self.all(name, name.matches('{VARIABLE}'))",
    "names of variables hold letters, digits and '_' and do not start with a digit: rename the variable",
    lambda variables: all(re.fullmatch(VARIABLE, name) for name in variables),
)


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

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
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
            Rule(
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

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.path) || self.path.startsWith('/') || has(self.revision)",
            "spec.model.revision is required when spec.model.path is a hub id (it does not start with '/'), so that "
            "every pod loads the same weights: add the commit, or give an absolute path",
            lambda model: "path" not in model or model["path"].startswith("/") or "revision" in model,
        ),
        Rule(
            "!has(self.source) || (has(self.path) && self.path.startsWith('/'))",
            "spec.model.path must be an absolute path inside spec.model.source: add it, such as /model",
            lambda model: "source" not in model or model.get("path", "").startswith("/"),
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
        Rule(
            "self == oldSelf",
            "spec.engine.type cannot be changed: create a second DeepSeekV41Deployment with the other engine, "
            "move clients to it, then delete this one",
        ),
    ]
    """SGLang or Reference (a small CPU engine for demos and tests); cannot be changed."""
    version: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[-+._a-zA-Z0-9]+$")]
    """Engine version; names the profile of flags, ports and rules."""
    platform: Platform | None = None
    """Hardware that the pods run on; required for SGLang, cpu for Reference."""
    image: ImageReference | None = None
    """Engine image; required for SGLang, default for Reference: the operator release's."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When to pull the image; default IfNotPresent."""
    image_pull_secrets: Annotated[list[PullSecret], Field(max_length=8), ListType("map", ("name",))] = Field(
        default_factory=list
    )
    """Registry credentials for all pods of this deployment."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.type != 'SGLang' || has(self.image)",
            "spec.engine.image is required for SGLang: give the image that holds spec.engine.version",
            lambda engine: engine["type"] != "SGLang" or "image" in engine,
        ),
        Rule(
            "self.type != 'SGLang' || (has(self.platform) && self.platform != 'cpu')",
            "spec.engine.platform is required for SGLang: give cuda-sm90, cuda-sm100 or hip-gfx950",
            lambda engine: engine["type"] != "SGLang" or engine.get("platform", "cpu") != "cpu",
        ),
        Rule(
            "self.type != 'Reference' || !has(self.platform) || self.platform == 'cpu'",
            "spec.engine.platform must be cpu for Reference, which has no GPU code: leave it out",
            lambda engine: engine["type"] != "Reference" or engine.get("platform", "cpu") == "cpu",
        ),
    )


class SecretKey(Base):
    """One key of a Secret of the same namespace; the kubelet reads it, the operator never does."""

    name: ObjectName
    """Name of the Secret."""
    key: Key
    """Key in the Secret."""


class Resources(Base):
    """Memory is both request and limit, CPU a request only."""

    cpu: Quantity | None = None
    """CPU request."""
    memory: Quantity | None = None
    """Memory request and limit."""


class Role(Base):
    """The pods of one role."""

    replicas: Replicas | None = None
    """Number of pods; default 1."""
    resources: Resources = Resources()
    """CPU and memory of a pod; default by engine."""
    args: Arguments = Field(default_factory=dict)
    """Engine flags: full name without dashes to a scalar or a list, such as `page-size: 64`."""
    env: Annotated[dict[str, Value], Field(max_length=64), _VARIABLES] = Field(default_factory=dict)
    """Environment variables, plain strings."""
    secret_env: Annotated[dict[str, SecretKey], Field(max_length=64), _VARIABLES] = Field(default_factory=dict)
    """Environment variables from Secrets."""
    startup_minutes: Annotated[int, Field(ge=1, le=1440)] | None = None
    """Minutes a pod may take to start before it is restarted; default by engine (Reference: 2)."""
    pod: PodOverrides = PodOverrides()
    """Scheduling, volumes and metadata of the pods."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.env) || !has(self.secretEnv) || self.env.all(name, !(name in self.secretEnv))",
            "a variable stands in env or in secretEnv, not in both: remove one",
            lambda role: not set(role.get("env", {})) & set(role.get("secretEnv", {})),
        ),
    )


class Roles(Base):
    """Prefill and decode are required; without encode the deployment serves text only."""

    encode: Role | None = None
    """Vision encoders; without them image requests are refused."""
    prefill: Role
    """Reads the prompt, and hands its key/value pages to a decode pod."""
    decode: Role
    """Writes the answer."""

    def declared(self) -> dict[RoleName, Role]:
        """The roles that exist, in the order encode, prefill, decode."""
        every: dict[RoleName, Role | None] = {"encode": self.encode, "prefill": self.prefill, "decode": self.decode}
        return {name: role for name, role in every.items() if role is not None}


class Transfer(Base):
    """How key/value pages travel from prefill to decode."""

    backend: Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[-_a-z0-9]+$")] | None = None
    """Transfer back end; default by engine (Reference: tcp)."""
    bootstrap_port: HighPort | None = None
    """Port on which prefill pods answer decode pods; default 8998."""


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
    router: Router = Router()
    """The router in front of the roles."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Who may talk to the pods."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.engine.type != 'SGLang' || (has(self.model) && has(self.model.path))",
            "spec.model.path is required for SGLang: give a hub id with spec.model.revision, or an absolute path",
            lambda spec: spec["engine"]["type"] != "SGLang" or "path" in spec.get("model", {}),
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

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.metadata.name.size() <= {MAX_NAME}",
            f"metadata.name must be at most {MAX_NAME} characters, because the names of all children are made from "
            "it: choose a shorter name",
            lambda document: len(document["metadata"]["name"]) <= MAX_NAME,
        ),
        Rule(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must start with a letter and hold only a-z, 0-9 and '-', because it names a Service: "
            "choose such a name",
            lambda document: re.fullmatch(r"^[a-z]([-a-z0-9]*[a-z0-9])?$", document["metadata"]["name"]) is not None,
        ),
    )

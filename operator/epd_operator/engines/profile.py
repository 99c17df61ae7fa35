"""The questions that a plan asks about an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from epd_operator.rules.commandline import render

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epd_operator.api.deployment import Spec
    from epd_operator.api.names import RoleName
    from epd_operator.rules.flag import Catalogue

REPLAY_REPORT: Final = "replay-report"
"""Capability of an engine whose `/server_info` says whether bounded replay really runs."""


class Images(Protocol):
    """The images that an operator release brings."""

    @property
    def worker_image(self) -> str:
        """Image of the Reference engine."""


@dataclass(frozen=True)
class Port:
    """A named port of the engine's container."""

    name: str
    number: int


@dataclass(frozen=True)
class DefaultResources:
    """Quantities for a role whose user gave none."""

    cpu: str
    memory: str


@dataclass(frozen=True)
class Hardware:
    """What a platform means to Kubernetes.

    Attributes:
        gpu: Name of the extended resource of one GPU, which is also the key of the taint on such nodes; None when the
            platform has none.
        environment: Container variables that the operator sets there besides those of the profile.
        defaults: Variables that the operator sets there where the user sets no other value.
        resources: Quantities for a role whose user gave none, where they are others than the profile's.
        rehearsal: What runs there is a rehearsal, too slow to serve anybody.
    """

    gpu: str | None = None
    environment: tuple[Mapping[str, Any], ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    resources: DefaultResources | None = None
    rehearsal: bool = False


@dataclass(frozen=True)
class CommandInputs:
    """What a command line is made from besides the role.

    Attributes:
        document: The spec as written, with defaults of the schema, and `metadata.name` in it.
        platform: What its pods run on.
        args: Effective flags of the role (the user's, and what other fields imply).
        layout_key: What two pods must share before they exchange pages: the compatibility key.
        nodes: Pods of one engine; above 1 each of them is started with this command line.
        tenant: What keeps its windows and stored pages apart from those of other deployments.
        pool: Whether the configuration of a pool of windows is mounted, which may be empty.
    """

    document: Mapping[str, Any]
    platform: str
    served_name: str
    model_path: str | None
    bootstrap_port: int
    args: Mapping[str, Any]
    layout_key: str
    nodes: int = 1
    tenant: str = ""
    pool: bool = False


@dataclass(frozen=True)
class Facts:
    """What an engine makes of a spec, as far as users want to see it.

    Attributes:
        page_size: Tokens in a key/value page.
        context_length: Tokens of prompt plus answer, the smaller of prefill and decode.
        replay: `On` or `Off`, whether prefill runs decoder bounded replay; None when nothing is known or there is none.
        kv_layout: How pages are laid out; None when there is only one way.
    """

    page_size: int
    context_length: int
    replay: str | None = None
    kv_layout: str | None = None


@dataclass(frozen=True)
class Probe:
    """An HTTP probe on a named port; times in seconds."""

    path: str
    port: str
    period: int
    timeout: int
    failures: int

    def manifest(self) -> dict[str, Any]:
        """The probe as a container spells it."""
        return {
            "httpGet": {"path": self.path, "port": self.port},
            "periodSeconds": self.period,
            "timeoutSeconds": self.timeout,
            "failureThreshold": self.failures,
        }


@dataclass(frozen=True)
class Profile:
    """Everything that differs between engines and their versions.

    Attributes:
        roles: Roles that the engine can run.
        capabilities: Named abilities, such as `vision-encode`.
        platforms: Hardware by platform; the first is the default where the user need not give one.
        transfers: Transfer back ends; the first is the default.
        catalogue: Per role, every flag that the engine knows.
        resources: Per role, default quantities.
        environment: Container variables that the operator sets, as Kubernetes spells them.
        defaults: Variables that the operator sets where the user sets no other value.
        metrics: What scaling wants to know -> name of the engine's metric; empty when it has none.
        pre_stop_seconds: How long a pod keeps serving after it left the endpoints.
        program: First arguments of a command line.
        options: Every flag of a command line, by full name.
        gpus: GPUs that a pod needs when the user gives no count, from effective flags and the number of nodes.
        role_probes: Probes by name, from the role, the minutes to start, and whether the pod leads its group.
        derive: Flags of the operator's whose values follow from other fields of the spec.
        agree: What all roles must agree on beyond image, weights and transfer, from the spec, a role and its effective
            flags; only what differs from the defaults of the version.
        look: What the engine makes of a spec and the effective flags of its roles.
        fetches: Whether pods read from outside the cluster (weights of a hub, pictures by their address).
        pool: Roles that read the configuration of a pool of windows, and when it is mounted: `always`, so that pods
            stay when the user changes the mode, or only `with` a pool. Empty where the engine uses none.
        pool_variable: Variable that names the mounted file; empty where a flag does.
        plugins: The plugins that are loaded, without which this would be another profile.
        plugin_path: Variable by which the engine finds plugins that an image of their own holds.
    """

    engine_type: str
    version: str
    roles: tuple[RoleName, ...]
    capabilities: frozenset[str]
    platforms: Mapping[str, Hardware]
    transfers: tuple[str, ...]
    catalogue: Mapping[RoleName, Catalogue]
    resources: Mapping[RoleName, DefaultResources]
    default_startup_minutes: int
    default_grace_seconds: int
    pre_stop_seconds: int
    program: tuple[str, ...]
    options: Callable[[RoleName, CommandInputs], Mapping[str, Any]] = field(repr=False)
    image: Callable[[Images], str | None] = field(repr=False)
    role_ports: Callable[[RoleName, int], tuple[Port, ...]] = field(repr=False)
    role_probes: Callable[[RoleName, int, bool], Mapping[str, Probe]] = field(repr=False)
    derive: Callable[[RoleName, Spec, int], Mapping[str, Any]] = field(repr=False)
    agree: Callable[[Spec, RoleName, Mapping[str, Any]], Mapping[str, Any]] = field(repr=False)
    look: Callable[[Spec, Mapping[RoleName, Mapping[str, Any]]], Facts] = field(repr=False)
    fetches: Callable[[Spec], bool] = field(repr=False)
    gpus: Callable[[Mapping[str, Any], int], int] = field(repr=False, default=lambda _args, _nodes: 0)
    environment: tuple[Mapping[str, Any], ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    pool: Mapping[RoleName, Literal["always", "with"]] = field(default_factory=dict)
    pool_variable: str = ""
    plugins: frozenset[str] = frozenset()
    plugin_path: str = ""

    @property
    def default_platform(self) -> str:
        """Platform when the user gives none."""
        return next(iter(self.platforms))

    @property
    def default_transfer(self) -> str:
        """Transfer back end when the user gives none."""
        return self.transfers[0]

    def default_image(self, settings: Images) -> str | None:
        """Image when the user gives none; None when the user must give one."""
        return self.image(settings)

    def hardware(self, platform: str) -> Hardware:
        """What a platform of this engine means to Kubernetes."""
        return self.platforms[platform]

    def args(self, role: RoleName) -> Catalogue:
        """Every flag that a role knows, by full name without dashes."""
        return self.catalogue[role]

    def derived_args(self, role: RoleName, spec: Spec, grace_seconds: int) -> dict[str, Any]:
        """Flags of the operator's whose values follow from other fields of the spec."""
        return dict(self.derive(role, spec, grace_seconds))

    def identity(self, spec: Spec, role: RoleName, args: Mapping[str, Any]) -> dict[str, Any]:
        """What the roles must agree on, as one role has it; only what differs from the defaults of this version.

        Args:
            spec: The whole spec.
            role: A declared role.
            args: Its effective flags.
        """
        return dict(self.agree(spec, role, args))

    def command(self, role: RoleName, inputs: CommandInputs) -> list[str]:
        """The whole command line; its first argument is the program."""
        return [*self.program, *render(self.options(role, inputs), self.args(role))]

    def reads_pool(self, role: RoleName, *, exists: bool) -> bool:
        """Whether the configuration of a pool of windows is mounted in a role's pods.

        Args:
            role: The pods' role.
            exists: Whether the user asks for a pool.
        """
        return self.pool.get(role) in ({"always", "with"} if exists else {"always"})

    def env(self, role: RoleName, platform: str) -> list[dict[str, Any]]:
        """Variables that the operator sets for a role on a platform."""
        entries = (*self.environment, *self.hardware(platform).environment)
        return [dict(entry) for entry in entries] if role in self.roles else []

    def ports(self, role: RoleName, bootstrap_port: int) -> tuple[Port, ...]:
        """Named ports of a role's container."""
        return self.role_ports(role, bootstrap_port)

    def probes(self, role: RoleName, startup_minutes: int, *, leads: bool = True) -> dict[str, dict[str, Any]]:
        """The container's startupProbe, readinessProbe and livenessProbe.

        Args:
            role: The pod's role.
            startup_minutes: Budget of the startup probe.
            leads: Whether the pod answers for its group; only where an engine spans pods some do not.
        """
        return {name: probe.manifest() for name, probe in self.role_probes(role, startup_minutes, leads).items()}

    def default_resources(self, role: RoleName, platform: str) -> DefaultResources:
        """Quantities for a role whose user gave none."""
        return self.hardware(platform).resources or self.resources[role]

    def facts(self, spec: Spec, args: Mapping[RoleName, Mapping[str, Any]]) -> Facts:
        """What the engine makes of a spec.

        Args:
            spec: The whole spec.
            args: Effective flags of every declared role.
        """
        return self.look(spec, args)
